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
def test_names_template_that_cannot_be_compiled(source):
    with pytest.raises(TemplateError):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 10**10**10**10 }}",
        "{{ 'x' * 10**10 }}",
        "{{ [1] * 10**10 }}",
        "{% set n = namespace(x=10) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{% for i in range(9999) %}{{ 'x' * 10000 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set s = 'x' * 9999 %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
        "{% for a in 'y' * 9999 %}{% for b in ('x' * 9999)|map('upper') %}{% endfor %}{% endfor %}",
        "{% for a in 'x' * 9999 recursive %}{{ loop('y' * 9999) }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% set n = namespace(x='xx') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='xx') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='xx') %}{% for i in range(9) %}"
        "{% set n.x = n.x.replace('x', n.x) %}{% endfor %}",
        "{% set n = namespace(x='xx') %}{% for i in range(9) %}"
        "{% set n.x = n.x|replace('x', n.x) %}{% endfor %}",
        "{% set s = 'x' * 99999 %}{{ ([s] * 99999)|join }}",
        "{% set s = 'x' * 99999 %}{{ ([s] * 99999)|map('upper')|join|length }}",
        "{{ ''.join(['x' * 99999] * 99999)|length }}",
        "{{ ('x' * 99999).join('y' * 99999)|length }}",
        "{{ ([[1] * 99999] * 99999)|sum(start=[])|length }}",
        "{{ 'x'|center(10**10)|length }}",
        "{{ 'x'.center(10**10)|length }}",
        "{{ 'x'.encode().center(10**10)|length }}",
        "{{ (1).to_bytes(10**10, 'big')|length }}",
        "{{ ('%9999999999d' % 1)|length }}",
        "{{ ('%*d' % (10**9, 1))|length }}",
        "{{ '%9999999999d'|format(1)|length }}",
        "{{ '{:9999999999}'.format(1)|length }}",
        "{{ '{:{}}'.format(1, 10**9)|length }}",
        "{{ [1]|batch(10**10, 0)|list|length }}",
        "{{ [[1], [2]]|tojson(indent=10**9) }}",
    ],
)
def test_ends_template_without_an_end(source):
    with pytest.raises(TemplateError):
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
def test_keeps_template_in_the_sandbox_and_from_changing_messages(source):
    with contextlib.suppress(TemplateError):
        assert rendered(source) == ""
    assert MESSAGES == [{"role": "user", "content": "hi"}]


def test_shows_errors_without_control_characters_and_never_empty():
    with pytest.raises(TemplateError) as caught:
        rendered(r"{{ raise_exception('\x1b[2J') }}")
    assert caught.value.message.isprintable()


def test_computes_ordinary_sums_and_loops():
    source = (
        "{% for i in range(2, 8, 3) %}{{ i }}{% endfor %} {{ 2**10 }} {{ '=' * 3 }} {{ 3 * 1.5 }} {{ a }}"
    )
    assert rendered(source, a="b") == "25 1024 === 4.5 b"


def test_runs_loops_sums_and_filters_of_templates_as_jinja_does():
    source = (
        "{% for a in [1, 2, 3] if a != 2 %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}"
        "{% endfor %} {% for k, v in {'a': 1}.items() %}{{ k ~ '=' ~ v }}{% else %}none{% endfor %} "
        "{% for x in nothing %}{% else %}empty{% endfor %} {{ 'a' + 'b' }} {{ [1] + [2] }} "
        "{{ '%s-%d' % ('x', 1234567) }} {{ '{}:{:>3}'.format('1234567', 5) }} {{ [1, 2]|join(', ') }} "
        "{{ messages|map(attribute='content')|join }} {{ ', '.join(['a', 'b']) }} "
        "{{ {'a': [1]}|tojson(indent=1)|length }} {{ 'a\nb'|indent(2)|replace('b', 'c') }} "
        "{% for m in messages recursive %}{{ m.content if m is mapping else m }}"
        "{{ loop(['z']) if m is mapping }}{% endfor %}"
    )
    assert rendered(source) == (
        "1/2,2/2 a=1 empty ab [1, 2] x-1234567 1234567:  5 1, 2 hi a, b 18 a\n  c hiz"
    )
