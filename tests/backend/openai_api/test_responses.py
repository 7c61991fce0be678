import pytest

pytestmark = pytest.mark.service


@pytest.fixture
def respond(api):
    """Return a function that continues a conversation."""

    def respond(given="SAY hi", **more):
        return api.post("responses", json={"model": "nano", "input": given, **more})

    return respond


def test_responds_as_clients_of_the_api_expect(respond):
    reply = respond(instructions="Be brief.", store=True, metadata={"a": "b"}).json()
    (message,) = reply["output"]
    assert (reply["object"], reply["status"], reply["error"]) == ("response", "completed", None)
    assert (message["role"], message["content"][0]["text"]) == ("assistant", "hi")
    usage = reply["usage"]
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]


def test_renders_items_as_the_same_chat_would_be(respond, chat, service):
    items = [
        {"role": "developer", "content": "s"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "reasoning", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
        {"role": "user", "content": "SAY x"},
    ]
    respond(items)
    (by_items,) = service.sampled[-1]
    texts = [("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "SAY x")]
    chat(messages=[{"role": role, "content": text} for role, text in texts])
    (by_chat,) = service.sampled[-1]
    assert by_items.prompt_ids == by_chat.prompt_ids


def test_is_incomplete_when_a_limit_cut_it(respond):
    reply = respond("SAY hello", max_output_tokens=2).json()
    assert (reply["status"], reply["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"given": [{"type": "computer_call"}]}, "input[0]"),
        ({"truncation": "auto"}, "truncation"),
        ({"given": "a" * 600}, "input"),
        ({"given": [{"role": "judge", "content": "a"}]}, "input"),
        ({"max_output_tokens": 512}, "max_output_tokens"),
        ({"reasoning": {"effort": "high"}}, "template_variables"),
    ],
)
def test_refuses_by_name(respond, given, param):
    refused = respond(**given)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
    assert (error["param"] or "").startswith(param)


@pytest.mark.parametrize("given", [{"input": []}, {"input": [{"type": "reasoning", "summary": []}]}])
def test_refuses_input_that_asks_nothing(api, given):
    reply = api.post("responses", json={"model": "nano", **given})
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
