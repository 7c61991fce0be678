import json

import pytest

from tests.tinkergym.datasets.test_layouts import CALLING, WEATHER
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prompts import PromptRow
from tinkergym.errors import AuthenticationError, InvalidRequestError
from tinkergym.inference.results import completed_line, fault_of
from tinkergym.schema.events import ErrorView
from tinkergym.schema.sampling import Completion, SampleFailure
from tinkergym.testing import byte_bundle


def answered(text, *, tools=(WEATHER,)):
    renderer = Renderer.from_bundle(byte_bundle(chat_template=CALLING)).with_tools(tools)
    ids = renderer.encode_answer(text)
    completion = Completion(
        request_id="r",
        token_ids=ids,
        sampling_logprobs=[0.0] * len(ids),
        finish_reason="stop",
        policy_version=3,
    )
    row = PromptRow(number=4, where="line 5", token_ids=[1, 2], renderer=renderer, kept={"id": "a"})
    return completed_line(row, 1, completion, token_ids=False, logprobs=False)


def test_parses_calls_as_the_grammar_of_the_template_does():
    line = answered('Let me see.<call>weather {"city": "Rome"}</call>')
    ((call,), text) = line["tool_calls"], line["text"]
    assert (text, call["type"], call["function"]["name"]) == ("Let me see.", "function", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}


def test_leaves_text_whole_without_calls_that_can_be_parsed():
    assert answered("No idea.")["tool_calls"] == []
    broken = answered("<call>weather {</call>")
    assert (broken["text"], broken["tool_calls"]) == ("<call>weather {</call>", [])
    assert "tool_calls" not in answered('<call>weather {"city": "Rome"}</call>', tools=())


def test_tells_errors_of_rows_from_errors_of_the_run():
    def failure(error):
        return SampleFailure(request_id="r", error=ErrorView.model_validate(error.to_wire()))

    assert fault_of(failure(InvalidRequestError("too long", field="prompt_ids"))).message == "too long"
    for error in (AuthenticationError("revoked"), InvalidRequestError("needs vLLM", field="structured")):
        with pytest.raises(type(error)):
            fault_of(failure(error))
