import pytest

from tests.tinkergym.agent.test_tool_turns import ADD
from tests.tinkergym.datasets.test_layouts import CALLING
from tests.tinkergym.openai_api.test_chat_stream import CALL, completion, part
from tinkergym.agent.renderer import Renderer
from tinkergym.openai_api.responses_answer import ResponsesReply
from tinkergym.openai_api.responses_request import ResponsesRequest
from tinkergym.openai_api.token_requests import chat_prompt
from tinkergym.testing.bundles import byte_bundle

TOOL = {"type": "function", **ADD["function"]}


def plain(response):
    """Return what a response says, without ids that are drawn."""
    return [
        (item.get("name"), item.get("arguments"), [one["text"] for one in item.get("content", [])])
        for item in response["output"]
    ]


@pytest.mark.parametrize("text", ["hello", "", f"I add. {CALL}{CALL}", CALL])
def test_streams_what_the_whole_response_says(text):
    renderer = Renderer.from_bundle(byte_bundle(chat_template=CALLING))
    wanted = ResponsesRequest(model="m", input="u", tools=[TOOL])
    chat = wanted.chat()
    prompt, sampled = chat_prompt(renderer, chat), completion(renderer, text)
    whole = ResponsesReply(prompt, wanted, chat, 0).whole(sampled)
    for cut in range(len(sampled.token_ids)):
        stream = ResponsesReply(prompt, wanted, chat, 0)
        events = [*stream.part(0, part(sampled, 0, cut)), *stream.end(0, sampled)]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert plain(events[-1]["response"]) == plain(whole)
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == "".join(one for _, _, texts in plain(whole) for one in texts)
