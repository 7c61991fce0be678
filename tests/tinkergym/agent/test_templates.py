"""Chat templates come with models, from anybody."""

import contextlib

import pytest

from tinkergym.agent.templates import ChatTemplate
from tinkergym.errors import TemplateError

MESSAGES = [{"role": "user", "content": "hi"}]


def rendered(source, **special_tokens):
    return ChatTemplate(source, special_tokens).render(MESSAGES, add_generation_prompt=True)


@pytest.mark.parametrize(
    "source",
    [
        "{{" + "(" * 20_000,
        "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
        "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
        "{% nothing %}",
        "\ud800",
    ],
)
def test_one_that_cannot_be_compiled_is_named(source):
    with pytest.raises(TemplateError, match="does not compile"):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 10**10**10 }}",
        "{{ 'x' * 10**10 }}",
        "{{ [1] * 10**10 }}",
        "{% set n = namespace(x=10) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{% for i in range(9999) %}{{ 'x' * 10000 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_one_without_an_end_ends(source):
    with pytest.raises(TemplateError, match="fails on messages"):
        rendered(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages|attr('__class__')|attr('__mro__') }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ ('{0.__class__}'|attr('format'))(messages) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ messages.append(1) }}",
        "{{ range.__self__ }}",
        "{{ range.__func__.__globals__ }}",
    ],
)
def test_one_does_not_leave_the_sandbox_or_change_the_messages(source):
    with contextlib.suppress(TemplateError):
        assert rendered(source) == ""
    assert MESSAGES == [{"role": "user", "content": "hi"}]


def test_what_one_raises_is_shown_without_control_characters_and_never_empty():
    with pytest.raises(TemplateError) as caught:
        rendered(r"{{ raise_exception('\x1b[2J') }}")
    assert r"\x1b[2J" in caught.value.message
    assert caught.value.message.isprintable()


def test_ordinary_sums_and_loops_are_computed():
    source = (
        "{% for i in range(2, 8, 3) %}{{ i }}{% endfor %} {{ 2**10 }} {{ '=' * 3 }} {{ 3 * 1.5 }} {{ a }}"
    )
    assert rendered(source, a="b") == "25 1024 === 4.5 b"
