"""Variables of a chat template: which it reads, who sets them, and who wins."""

import pytest

from benchmarks.template_families import shipped_template, template_bundle
from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.template_variables import with_defaults
from tinkergym.agent.templates import ChatTemplate
from tinkergym.errors import TemplateError
from tinkergym.messages import user
from tinkergym.schema.chat_templates import variables_fault
from tinkergym.testing import byte_bundle
from tinkergym.testing.bundles import CHATML
from tinkergym.trajectory.trajectory import StopReason

TEMPLATE = (
    "{% set shown = 'set here' %}{% for extra in documents or [] %}{{ extra }}{% endfor %}"
    "{% if effort is not defined %}{% set effort = 'medium' %}{% endif %}"
    "{% macro mark() %}[{{ effort }}{% if not thinking | default(true) %} quick{% endif %}]{% endmacro %}"
    "{{ mark() }}{% for m in messages %}{% set role = m.role %}{{ role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
ASKED = [user("Hi")]


def prompt(renderer, messages=ASKED):
    return renderer.decode(renderer.start(messages))


def renderer(**variables):
    return Renderer.from_bundle(byte_bundle(chat_template=TEMPLATE).with_settings(variables, ""))


def first_prompt(variables, info):
    loop = AgentLoop(renderer(**variables), EpisodePlan(episode_id="e", seed=0, policy="p"))
    request = loop.begin("Hi", info)
    return loop, request and renderer().decode(request.prompt_ids)


def test_knows_names_that_only_the_caller_sets():
    assert ChatTemplate(TEMPLATE, {}).names == {"documents", "effort", "thinking"}
    assert ChatTemplate(CHATML, {}).names == frozenset()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("{% macro m(q, r=q, s=z) %}{{ q }}{{ r }}{{ k }}{{ varargs }}{% endmacro %}{{ m(1) }}", {"z", "k"}),
        ("{% macro m(q) %}{% set r = q %}{{ r }}{% endmacro %}{{ q }}{{ r }}", {"q", "r"}),
        ("{% macro m() %}{{ later }}{% endmacro %}{% set later = 1 %}{{ m() }}", set()),
        (
            "{% macro m(a) %}{{ caller(a) }}{% endmacro %}{% call(u) m(v) %}{{ u }}{{ w }}{% endcall %}",
            {"v", "w"},
        ),
        ("{% for x in tools %}{{ x }}{{ loop.index }}{% set y = 1 %}{% endfor %}{{ x }}{{ y }}", {"x", "y"}),
        ("{% with a = b %}{{ a }}{% endwith %}{{ a }}", {"a", "b"}),
        ("{% set n %}{{ n }}{% endset %}{{ n }}{% if m %}{% set o = 1 %}{% endif %}{{ o }}", {"n", "m"}),
    ],
)
def test_takes_own_names_of_macros_and_loops_for_no_variables(source, names):
    assert ChatTemplate("{{ messages }}" + source, {}).names == names


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("qwen3", {"enable_thinking"}),
        ("gptoss", {"builtin_tools", "model_identity", "reasoning_effort"}),
        ("llama3_2", {"custom_tools", "date_string", "tools_in_user_message"}),
        ("gemma3", set()),
    ],
)
def test_reads_the_variables_of_families_off_their_templates(name, names):
    source = shipped_template(name)
    if source is None:
        pytest.skip(f"trl, which ships the template {name}, is not installed")
    assert ChatTemplate(source, template_bundle(name, source).special_tokens).names == names


def test_renders_prompts_with_their_values():
    assert prompt(renderer()).startswith("[medium]user: Hi")
    assert prompt(renderer(effort="high", thinking=False)).startswith("[high quick]user: Hi")
    assert prompt(renderer(documents=["doc"])).startswith("doc[medium]")


@pytest.mark.parametrize("name", ["efort", "shown", "role", "content"])
def test_refuses_names_that_the_template_does_not_read(name):
    with pytest.raises(TemplateError) as refused:
        renderer(**{name: 1})
    assert (refused.value.field, refused.value.code) == ("template_variables", "unknown_template_variable")


@pytest.mark.parametrize(
    "variables",
    [
        {"messages": []},
        {"tools": []},
        {"strftime_now": 1},
        {"bos_token": ""},
        {"a b": 1},
        {"": 1},
        {1: 1},
        {"a": float("nan")},
        {"a": object()},
        {"a": "x" * 100_001},
        {f"a{number}": 1 for number in range(33)},
    ],
)
def test_refuses_what_cannot_be_a_variable(variables):
    assert variables_fault(variables).field == "template_variables"


@pytest.mark.parametrize(
    ("job", "info", "shown"),
    [
        ({}, {}, "[medium]"),
        ({}, {"template_variables": None}, "[medium]"),
        ({}, {"template_variables": {"effort": "low"}}, "[low]"),
        ({"effort": "high"}, {"template_variables": {"effort": "low", "thinking": False}}, "[high quick]"),
    ],
)
def test_prefers_what_the_job_sets_to_the_task(job, info, shown):
    assert first_prompt(job, info)[1].startswith(shown)


@pytest.mark.parametrize(
    "given", [["effort"], {"efort": "low"}, {"messages": []}, {"effort": object()}, {"effort": float("inf")}]
)
def test_ends_episode_whose_task_sets_something_else(given):
    loop, request = first_prompt({}, {"template_variables": given})
    assert request is None
    assert loop.stop_reason is StopReason.ENVIRONMENT_ERROR


@pytest.mark.parametrize("value", [False, None, 3, "it's {{ x }}", ["a", {"b": None}], {"c": [True]}])
def test_gives_exports_the_values_as_defaults(value):
    source = "{{ x | tojson }}{% macro m() %}{{ x | tojson }}{% endmacro %}{{ m() }}"
    exported = ChatTemplate(with_defaults(source, {"x": value}), {})
    own = ChatTemplate(source, {}, variables={"x": value})
    assert exported.render([], add_generation_prompt=True) == own.render([], add_generation_prompt=True)
    assert exported.with_changes(variables={"x": 7}).render([], add_generation_prompt=True) == "77"


def test_records_values_of_the_episode():
    loop, _ = first_prompt({"effort": "high"}, {"template_variables": {"effort": "low", "thinking": False}})
    loop.fail(StopReason.SAMPLING_FAILED, "stopped here")
    assert loop.trajectory().template_variables == {"effort": "high", "thinking": False}
