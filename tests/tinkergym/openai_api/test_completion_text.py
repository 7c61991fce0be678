import pytest

from benchmarks.template_families import shipped_template, template_bundle
from tests.tinkergym.agent.test_tool_turns import ADD
from tests.tinkergym.datasets.test_layouts import CALLING
from tinkergym.agent.renderer import Renderer
from tinkergym.openai_api.completion_text import CallReader
from tinkergym.testing.bundles import byte_bundle


@pytest.fixture
def renderer():
    return Renderer.from_bundle(byte_bundle(chat_template=CALLING)).with_tools([ADD])


def test_keeps_calls_that_cannot_be_read_as_text(renderer):
    said = CallReader(renderer, [ADD], []).said('<call>add {"a": }</call>')
    assert (said.calls, said.finish_reason("stop")) == ([], "stop")
    assert '"a": }' in said.content


def test_numbers_calls_on_from_those_of_the_conversation(renderer):
    before = [{"role": "assistant", "content": "", "tool_calls": [{"id": "call00006"}]}]
    said = CallReader(renderer, [ADD], before).said("<call>add {}</call>")
    assert ([call.id for call in said.calls], said.finish_reason("stop")) == (["call00007"], "tool_calls")


def test_types_arguments_that_a_format_writes_as_text():
    renderer = Renderer.from_bundle(template_bundle("glm4moe", shipped_template("glm4moe"))).with_tools([ADD])
    function = {"name": "add", "arguments": {"a": 1, "b": "2"}}
    call = {"id": "call00000", "type": "function", "function": function}
    text = renderer.answer_text(
        [{"role": "user", "content": "u"}], {"role": "assistant", "tool_calls": [call]}
    )
    said = CallReader(renderer, [ADD], []).said(text)
    # `b` is not in the schema, so it stays a text.
    assert said.calls[0].function.arguments == '{"a": 1, "b": "2"}'
