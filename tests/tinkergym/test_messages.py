import copy
import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.agent.renderer import Renderer
from tinkergym.errors import (
    InvalidEnvironmentError,
    InvalidImageError,
    TinkerGymError,
    UnsupportedPartError,
)
from tinkergym.messages import (
    ROLES,
    assistant,
    message_fault,
    messages_text,
    observation_messages,
    observation_text,
    opening_messages,
    system,
    user,
)
from tinkergym.spaces import Chat
from tinkergym.testing import byte_bundle
from tinkergym.trajectory.content_parts import ImagePart, TextPart, ToolCallPart

TOOL = {"role": "tool", "content": "42", "name": "calculator", "tool_call_id": "call-1"}
PIXELS = np.zeros((2, 3, 3), np.uint8)


@pytest.mark.parametrize(
    ("observation", "messages"),
    [
        ("go", [user("go")]),
        ("", [user("")]),
        (np.str_("go"), [user("go")]),
        ({"text": "go", "board": [1, 2]}, [user("go")]),
        ([TOOL, user("go")], [TOOL, user("go")]),
        ((system("s"),), [system("s")]),
        ([], []),
        ({"messages": [TOOL]}, [TOOL]),
        ({"messages": [TOOL], "text": "go"}, [TOOL, user("go")]),
        ({"messages": [TOOL], "text": ""}, [TOOL]),
        ({"messages": None, "text": "go"}, [user("go")]),
        ({"text": "go", "images": [], "image": None}, [user("go")]),
        ({"text": "go", "planes": np.zeros((8, 8, 111), np.uint8)}, [user("go")]),
        ({"text": "go", "mask": np.zeros(9, np.uint8)}, [user("go")]),
    ],
)
def test_turns_observation_into_messages(observation, messages):
    found = observation_messages(observation)
    assert found == messages
    assert all(type(text) is str for message in found for text in message.values())


def test_gives_messages_to_the_caller():
    observation = [user("a")]
    observation_messages(observation)[0]["content"] = "b"
    assert observation == [user("a")]


@given(st.integers(0, 2**31))
def test_turns_every_chat_of_the_space_into_its_messages(seed):
    chat = Chat(seed=seed).sample()
    before = copy.deepcopy(chat)
    assert observation_messages(chat) == before


@pytest.mark.parametrize(
    ("observation", "error", "reason"),
    [
        (7, TypeError, "int"),
        (None, TypeError, "None .did you forget"),
        ({}, TypeError, "'text'"),
        ({"text": 3}, TypeError, "'text'"),
        ({"messages": "go"}, TypeError, "list of messages"),
        ({"messages": [TOOL], "text": 3}, TypeError, "'text'"),
        (["go"], ValueError, r"\[0\]"),
        (
            {"messages": [user("a"), {"role": "boss", "content": "b"}]},
            ValueError,
            r"'messages'\[1\]: the role",
        ),
        ([{"role": "user", "content": None}], ValueError, "content"),
        ("\ud800", ValueError, "surrogate"),
        ([user("\ud800")], ValueError, "surrogate"),
        ({"text": "go", "messages": [user("\ud800")]}, ValueError, "surrogate"),
        (np.zeros(3), TypeError, "ndarray"),
    ],
)
def test_rejects_what_is_no_text_and_no_messages(observation, error, reason):
    with pytest.raises(error, match=reason):
        observation_messages(observation)


@pytest.mark.parametrize(
    ("observation", "key"),
    [
        ({"text": "look", "screen": PIXELS}, "'screen'"),
        ({"text": "look", "screen": np.zeros((5, 5, 1), np.uint8)}, "'screen'"),
        ([{"role": "user", "content": [{"type": "image"}]}], r"\[0\]\['content'\]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            r"'messages'\[0\]\['content'\]",
        ),
    ],
)
def test_rejects_unexpected_image_and_names_its_place(observation, key):
    with pytest.raises(UnsupportedPartError, match=key) as caught:
        observation_messages(observation)
    # For those who catch what any unusable observation raises, and for those who want the type.
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, InvalidEnvironmentError)


@pytest.mark.parametrize(
    ("observation", "kinds"),
    [
        ({"text": "look", "image": PIXELS}, ["image", "text"]),
        ({"image": PIXELS}, ["image"]),
        ({"image": PIXELS, "images": [255 - PIXELS, PIXELS], "text": ""}, ["image"] * 3),
        ({"images": np.stack([PIXELS, PIXELS]), "text": "both"}, ["image", "image", "text"]),
        (PIXELS, ["image"]),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "image", "image": PIXELS}],
                }
            ],
            ["text", "image"],
        ),
    ],
)
def test_knows_images_in_messages_by_hash_of_their_file(observation, kinds):
    (message,) = observation_messages(observation)
    assert [part.type for part in message["content"]] == kinds
    images = [part for part in message["content"] if part.type == "image"]
    assert [hashlib.sha256(part.file.data).hexdigest() for part in images] == [p.sha256 for p in images]


@pytest.mark.parametrize(
    "observation",
    [
        {"text": "look", "images": ["iVBORw0KGgo="]},
        {"image": 1},
        {"image": b"GIF89a"},
        {"images": PIXELS, "text": "x"},
        [{"role": "user", "content": [{"type": "image", "image": b"no image"}]}],
    ],
)
def test_rejects_what_is_no_image(observation):
    with pytest.raises(InvalidImageError):
        observation_messages(observation)


IMAGE = {"type": "image", "sha256": "ab" * 32}


def test_joins_parts_that_are_all_text():
    content = [{"type": "text", "text": "look "}, TextPart(text="there")]
    assert observation_messages([{"role": "user", "content": content}]) == [user("look there")]
    assert content == [{"type": "text", "text": "look "}, TextPart(text="there")]


def test_keeps_kind_of_other_parts_readable_as_text():
    call = ToolCallPart(id="1", name="add", arguments='{"a": 1}')
    content = [{"type": "text", "text": "see "}, IMAGE, call]
    (message,) = observation_messages([{"role": "user", "content": content}])
    assert message["content"] == [TextPart(text="see "), ImagePart(sha256="ab" * 32), call]
    called = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert messages_text([message]) == f"see [image abababababab]{called}"


@pytest.mark.parametrize(
    "content", [[{"type": "text"}], [{"type": "sound", "sha256": "ab" * 32}], [{"text": "\ud800"}], [3]]
)
def test_rejects_what_is_no_part_in_its_place(content):
    with pytest.raises(ValueError, match=r"\[0\]\['content'\]"):
        observation_messages([{"role": "user", "content": content}])


@pytest.mark.parametrize("part", [IMAGE, {"type": "tool_call", "id": "1", "name": "f", "arguments": "{}"}])
def test_rejects_by_kind_a_part_that_text_models_lack(part):
    renderer = Renderer.from_bundle(byte_bundle())
    messages = observation_messages(
        [
            {"role": "user", "content": "go"},
            {"role": "user", "content": [{"type": "text", "text": "see"}, part]},
        ]
    )
    for render in (
        renderer.start,
        lambda given: renderer.continuation(given, answer_closed=True),
        lambda given: renderer.delta([1], given),
    ):
        with pytest.raises(UnsupportedPartError):
            render(messages)


def test_keeps_type_of_image_error_on_the_wire():
    from tinkergym.errors import from_wire

    error = UnsupportedPartError("there is one", field="environment")
    back = from_wire(json.loads(json.dumps(error.to_wire())))
    assert (type(back), back.to_wire()) == (UnsupportedPartError, error.to_wire())
    assert isinstance(back, TinkerGymError)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([user("go")], "go"),
        ([], ""),
        ([TOOL], "[tool]\n42"),
        ([system("s"), user("go")], "[system]\ns\n\n[user]\ngo"),
    ],
)
def test_shows_messages_as_text_for_people(messages, text):
    assert messages_text(messages) == text
    assert observation_text(messages) == text


SAID = [user("go"), assistant("yes"), user("on")]


@pytest.mark.parametrize(
    ("messages", "job", "environment", "expected"),
    [
        (SAID, None, None, SAID),
        (SAID, None, "", SAID),
        (SAID, None, "env", [system("env"), *SAID]),
        (SAID, "job", "env", [system("job"), *SAID]),
        (SAID, "", "env", SAID),
        ([system("own"), *SAID], None, "env", [system("own"), *SAID]),
        ([system("own"), *SAID], "job", "env", [system("job"), *SAID]),
        ([system("own"), *SAID], "", "env", SAID),
        ([system("a"), system("b"), *SAID], "job", None, [system("job"), *SAID]),
        ([user("go"), system("late")], "job", None, [system("job"), user("go"), system("late")]),
    ],
)
def test_puts_jobs_prompt_before_the_environments_in_one(messages, job, environment, expected):
    before = copy.deepcopy(messages)
    assert opening_messages(messages, job_prompt=job, environment_prompt=environment) == expected
    assert messages == before


anything = st.none() | st.integers() | st.text() | st.lists(st.text(max_size=3))


@given(anything | st.dictionaries(st.sampled_from(["role", "content", "name", "x"]), anything))
def test_tells_whether_any_value_is_a_message(value):
    assert isinstance(message_fault(value), str)
    assert [message_fault({"role": role, "content": "x"}) for role in ROLES] == [""] * 4
