import copy
import json
import pickle

import gymnasium as gym
import pytest
from gymnasium.spaces.utils import flatdim, flatten, flatten_space, unflatten
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.errors import InvalidSpaceError
from tinkergym.messages import ROLES, assistant, system, user
from tinkergym.spaces import Chat, Text

messages = st.fixed_dictionaries(
    {"role": st.sampled_from(ROLES), "content": st.text(max_size=20)},
    optional={"name": st.text(min_size=1, max_size=9), "tool_call_id": st.text(min_size=1, max_size=9)},
)


@given(st.lists(messages, max_size=4))
def test_contains_lists_of_messages_that_are_json_already(chat):
    assert chat in Chat()
    assert json.loads(json.dumps(chat)) in Chat()


@pytest.mark.parametrize(
    ("thing", "reason"),
    [
        ("hello", "list of messages"),
        ((user("a"),), "list of messages"),
        (["hello"], r"\[0\]: a message must be a dict"),
        ([user("a"), {"role": "user"}], r"\[1\]: the content"),
        ([{"role": "moderator", "content": "a"}], "role"),
        ([{"role": ["user"], "content": "a"}], "role"),
        ([{"role": "user", "content": "a", "images": []}], "no 'images'"),
        ([user("\ud800")], "surrogate"),
        ([{**user("a"), "name": ""}], "name"),
        ([{**user("a"), "tool_call_id": "x" * 257}], "tool_call_id"),
        ([{**user("a"), "name": None}], "name"),
    ],
)
def test_says_why_other_things_are_not_contained(thing, reason):
    assert thing not in Chat()
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(Chat().fault(thing))


def test_includes_the_bounds_of_counts_roles_and_lengths():
    space = Chat(2, min_messages=1, roles=["tool", "user"], max_length=3)
    assert [[user("a")] * count in space for count in range(4)] == [False, True, True, False]
    assert [user("abc")] in space
    assert [user("abcd")] not in space
    assert [assistant("a")] not in space


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_messages": 1, "min_messages": 2},
        {"min_messages": -1},
        {"roles": []},
        {"roles": "user"},
        {"roles": ["u"]},
        {"max_length": -1},
    ],
)
def test_rejects_bounds_that_no_chat_can_keep(arguments):
    with pytest.raises(ValueError, match="must"):
        Chat(**arguments)


@pytest.mark.parametrize(
    "space",
    [Chat(), Chat(9, min_messages=7), Chat(1, roles=["tool"]), Chat(0), Chat(max_length=0)],
)
def test_draws_short_contained_samples_repeatable_by_seed(space):
    again = copy.deepcopy(space)
    space.seed(3)
    again.seed(3)
    samples = [space.sample() for _ in range(50)]
    assert samples == [again.sample() for _ in range(50)]
    assert all(sample in space and len(sample) <= max(3, space.min_messages) for sample in samples)


def test_samples_one_of_the_legal_chats():
    legal = [[user("a")], [user("b"), assistant("c")]]
    space = Chat(seed=0)
    samples = [space.sample(mask=legal) for _ in range(50)]
    assert all(chat in samples for chat in legal)
    samples[0].append(user("changed by whoever got it"))
    assert all(len(chat) == count for count, chat in enumerate(legal, start=1))
    with pytest.raises(ValueError, match="not in"):
        space.sample(mask=[["no message"]])
    with pytest.raises(ValueError, match="mask="):
        space.sample(probability={"a": 1.0})


def test_compares_spaces_by_their_bounds():
    assert Chat() == Chat(roles=["assistant", "tool", "user", "system"])
    others = [Chat(5), Chat(min_messages=1), Chat(roles=["user"]), Chat(max_length=5), Text()]
    assert all(Chat() != other for other in others)


def test_survives_pickling_and_copying_with_its_generator():
    space = Chat(5, roles=["user"], seed=1)
    copies = [pickle.loads(pickle.dumps(space)), copy.deepcopy(space)]
    assert copies == [space, space]
    expected = space.sample()
    assert [other.sample() for other in copies] == [expected, expected]


def test_shares_nothing_in_gymnasiums_json_form_with_values():
    chat = [system("a")]
    (back,) = Chat().from_jsonable(Chat().to_jsonable([chat]))
    back[0]["content"] = "b"
    assert chat == [system("a")]


@pytest.mark.parametrize("wrap", [lambda space: space, lambda space: gym.spaces.Dict(chat=space, n=Text(3))])
def test_rejects_flattening_by_name(wrap):
    space = wrap(Chat())
    with pytest.raises((InvalidSpaceError, ValueError), match="cannot be flattened"):
        flatdim(space)
    with pytest.raises(InvalidSpaceError):
        flatten_space(space)
    with pytest.raises(InvalidSpaceError):
        flatten(space, space.sample())
    with pytest.raises(InvalidSpaceError):
        unflatten(space, space.sample())
