import sys
import traceback

import pytest

from tinkergym.user_code.quoting import printable, quoted, raised, type_in_words, with_relative_paths


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


def test_names_files_by_their_place_in_their_package(tmp_path, monkeypatch):
    package = tmp_path / "site" / "word_game"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "env.py").write_text("def step():\n    raise ValueError('/etc/answer is not a word')\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    try:
        __import__("word_game.env").env.step()
    except ValueError:
        told = with_relative_paths(traceback.format_exc())
    finally:
        for name in [name for name in sys.modules if name.startswith("word_game")]:
            del sys.modules[name]
    assert '  File "word_game/env.py", line 2, in step\n' in told
    assert str(tmp_path) not in told
    assert "ValueError: /etc/answer is not a word" in told


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/a/site/pack/env.py", "pack/env.py"),
        ("/a/site/deeper/pack/env.py", "pack/env.py"),
        ("/elsewhere/env.py", "env.py"),
        ("<string>", "<string>"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
    ],
)
@pytest.mark.parametrize("before", ["  ", "  | ", "    | "])
def test_counts_innermost_folder_of_imports(path, shown, before):
    text = f'{before}File "{path}", line 3, in step'
    folders = ["/a/site", "/a/site/deeper", "/a"]
    assert with_relative_paths(text, folders) == f'{before}File "{shown}", line 3, in step'


def test_names_package_installed_for_development_from_its_top(tmp_path):
    inner = tmp_path / "src" / "pack" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").write_text("")
    assert with_relative_paths(f'  File "{inner}/env.py", line 1', []) == '  File "pack/inner/env.py", line 1'


def test_passes_over_long_white_space_once():
    assert with_relative_paths("\n" * 300_000) == "\n" * 300_000
