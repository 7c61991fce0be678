import base64

import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.openai_api.chat_messages import conversation

CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_reads_what_clients_repeat_from_responses():
    said = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": [CALL]}
    found = conversation(
        [
            {"role": "developer", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            said,
            {"role": "tool", "tool_call_id": "c", "content": "3"},
            {"role": "assistant", "content": "done", "tool_calls": [], "reasoning_content": "hm"},
        ]
    )
    assert [message["role"] for message in found] == ["system", "user", "assistant", "tool", "assistant"]
    assert (found[1]["content"], found[2]["content"]) == ("ab", "")
    assert found[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert found[3]["name"] == "add"
    assert found[4] == {"role": "assistant", "content": "done"}


def test_hands_images_to_the_reader():
    read = []

    def read_image(data):
        read.append(data)
        raise InvalidRequestError("broken", field="image")

    url = "data:image/png;base64," + base64.b64encode(b"file").decode()
    part = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    with pytest.raises(InvalidRequestError):
        conversation([{"role": "user", "content": [part]}], read_image)
    assert read == [b"file"]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([{"role": "tool", "tool_call_id": "c", "content": "3"}], "messages[0]"),
        (
            [
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "d", "content": "3"},
            ],
            "messages[1].tool_call_id",
        ),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0]"),
        ([{"role": "user"}, {"content": "a"}], "messages"),
    ],
)
def test_names_the_message_that_is_wrong(messages, field):
    with pytest.raises(InvalidRequestError) as refused:
        conversation(messages)
    assert refused.value.field == field
