import pytest

from benchmarks.hostile_templates import TEMPLATES
from tinkergym.agent.template_allowance import bounded
from tinkergym.agent.template_sandbox import BoundedEnvironment
from tinkergym.agent.templates import ChatTemplate
from tinkergym.errors import TemplateError

PROBE = [{"role": "user", "content": "x"}]


def render(source, **values):
    with bounded():
        return BoundedEnvironment().from_string(source).render(values)


@pytest.mark.parametrize("name", TEMPLATES)
def test_refuses_work_before_it_is_done(name):
    with pytest.raises(TemplateError):
        ChatTemplate(TEMPLATES[name], {}).render(PROBE, add_generation_prompt=True)


@pytest.mark.parametrize(
    "source",
    [
        "{% set s = messages[0].content * 6 %}{{ s|wordcount }}",
        "{% set s = messages[0].content * 6 %}{{ s|title|length }}",
        "{{ messages[0].content|title|length }}",
        "{% for i in range(999) %}{% set s = messages[0].content|upper %}{% endfor %}",
    ],
)
def test_refuses_work_that_long_conversation_would_pay_for(source):
    conversation = [{"role": "user", "content": "a " * 4_000_000}]
    with pytest.raises(TemplateError):
        ChatTemplate(source, {}).render(conversation, add_generation_prompt=True)
    # As long as any model reads, with a call per message.
    written = "{% for m in messages %}{{ m.content.split('</think>')[-1]|trim }}{% endfor %}"
    conversation = [{"role": "user", "content": "a" * 200_000}] * 10
    assert len(ChatTemplate(written, {}).render(conversation, add_generation_prompt=True)) == 2_000_000


def test_does_what_templates_do():
    source = "{% for m in messages %}{{ m.role|upper ~ ': ' + m.content }}{{ '\n' * 2 }}{% endfor %}"
    assert render(source, messages=[{"role": "user", "content": "hi"}]) == "USER: hi\n\n"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 99999999 }}",
        "{{ 9 ** 9999 }}",
        "{{ '%0999999d' % 1 }}",
        "{{ '{:>999999}'.format('x') }}",
        "{{ 'x'.ljust(99999999) }}",
        "{{ ('x' * 9999999) | replace('x', 'y' * 9999) }}",
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{{ ['x' * 9999999] | join('y' * 99999999) }}",
    ],
)
def test_bounds_memory_and_time_that_few_characters_can_ask_for(source):
    with pytest.raises(OverflowError):
        render(source)


def test_gives_each_rendering_an_allowance_of_its_own():
    source = "{% for a in range(100) %}{% for b in range(999) %}{% endfor %}{% endfor %}done"
    assert [render(source), render(source)] == ["done", "done"]


def test_allows_more_rounds_for_longer_conversations():
    source = "{% for a in range(600) %}{% for b in range(999) %}{% endfor %}{% endfor %}"
    with pytest.raises(OverflowError):
        render(source)
    with bounded([{"role": "user", "content": "hi"}] * 1000):
        assert BoundedEnvironment().from_string(source).render() == ""
