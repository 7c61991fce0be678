import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.openai_api.responses_request import ResponsesRequest


def test_joins_a_message_with_its_calls():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = [
        {"role": "user", "content": "u"},
        {"type": "message", "role": "assistant", "content": "I call."},
        call,
        {**call, "call_id": "d"},
        {"type": "function_call_output", "call_id": "c", "output": "5"},
        {"type": "function_call_output", "call_id": "d", "output": "6"},
        call,
    ]
    user, said, first, second, last = ResponsesRequest(model="m", input=items).chat().messages
    assert (user["role"], said["content"]) == ("user", "I call.")
    assert [one["id"] for one in said["tool_calls"]] == ["c", "d"]
    assert [first["tool_call_id"], second["tool_call_id"]] == ["c", "d"]
    assert [one["id"] for one in last["tool_calls"]] == ["c"]


def test_becomes_the_same_request_for_a_chat():
    wanted = ResponsesRequest(
        model="m",
        input="hi",
        instructions="s",
        max_output_tokens=5,
        temperature=0.5,
        tools=[{"type": "function", "name": "f", "parameters": {}}],
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        text={"format": {"type": "text"}, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
    ).chat()
    assert wanted.messages == [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    assert (wanted.longest, wanted.temperature, wanted.logprobs) == (5, 0.5, True)
    assert wanted.shown_tools[0]["function"]["name"] == "f"
    assert wanted.variables == {"reasoning_effort": "low"}


def test_names_the_item_that_is_not_supported():
    with pytest.raises(InvalidRequestError) as refused:
        ResponsesRequest(
            model="m", input=[{"role": "user", "content": "a"}, {"type": "computer_call"}]
        ).chat()
    assert refused.value.field == "input[1]"
