from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from tinkergym.testing.made_up_episodes import one_turn_episode
from tinkergym.trajectory.content_parts import (
    ImagePart,
    ImageSpan,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    content_of,
    content_text,
)
from tinkergym.trajectory.trajectory import Trajectory

PARTS = [
    TextPart(text="What is this? "),
    ImagePart(sha256="0" * 64),
    ToolCallPart(id="call-1", name="zoom", arguments="{}"),
    ToolResultPart(id="call-1", text="a cat"),
]


def with_parts() -> Trajectory:
    record = one_turn_episode(1.0)
    turn = record.turns[0].model_copy(update={"observation": PARTS[:2], "action": PARTS[2:3]})
    return record.model_copy(update={"turns": [turn], "final_observation": PARTS[3:]})


def test_restores_readable_trajectory_of_parts_after_the_wire():
    back = Trajectory.model_validate_json(with_parts().model_dump_json())
    assert back == with_parts()
    assert back.turns[0].observation == PARTS[:2]
    assert back.transcript == [
        ("user", "What is this? [image 000000000000]"),
        ("assistant", '<tool_call>\n{"name": "zoom", "arguments": {}}\n</tool_call>'),
        ("user", "a cat"),
    ]


def test_sends_text_as_plain_string_on_the_wire():
    turn = json.loads(one_turn_episode(1.0).model_dump_json())["turns"][0]
    assert (turn["observation"], turn["action"]) == ("go", "gone")
    assert content_of([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == "ab"
    assert content_text(PARTS[:1]) == "What is this? "


@pytest.mark.parametrize(
    "part", [{"type": "image", "sha256": "short"}, {"type": "smell"}, {"type": "text", "text": "", "more": 1}]
)
def test_rejects_other_parts(part):
    with pytest.raises(ValueError, match=r"part|sha256|type|more"):
        content_of([part])


def test_requires_a_token_of_an_image():
    with pytest.raises(ValidationError, match="one token"):
        ImageSpan(sha256="0" * 64, start=3, end=3)
