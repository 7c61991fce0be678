import pytest

from tinkergym.user_code.quoting import printable, quoted, raised, type_in_words


class Mute:
    def __str__(self):
        raise RuntimeError("no")


def test_cuts_what_is_quoted_and_names_object_without_repr():
    assert quoted("x" * 1000, most=5) == "xxxxx"
    assert "Mute" in quoted(Mute())
    assert "RuntimeError" in quoted(Mute())


@pytest.mark.parametrize(("value", "word"), [(None, "return"), (3, "int"), ("", "str")])
def test_names_a_type_and_hints_at_forgotten_return_for_none(value, word):
    assert word in type_in_words(value)


def test_commands_no_terminal_by_any_text():
    text = printable("a\n\tb\x1b[2J\x00")
    assert text == "a\n\tb\\x1b[2J\\x00"
    assert "\x1b" not in raised(ValueError("\x1b[31mred"))
