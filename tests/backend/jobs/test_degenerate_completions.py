from __future__ import annotations

import random

import pytest

from backend.episodes.episode_requests import step_requests
from backend.episodes.played import trained_seats
from backend.jobs.degenerate_completions import degenerate_warnings, is_garbled, loops
from tests.backend.seats import result_of
from tinkergym.algorithms import GRPO
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.testing.made_up_episodes import one_turn_episode

SPEC = RLSpec(environment=EnvironmentRef(id="x"), steps=1, algorithm=GRPO(group_size=4, groups_per_step=4))
RANDOM = random.Random(0)
VARIED = RANDOM.choices(range(5000), k=300)


def varied():
    return RANDOM.choices(range(5000), k=300)


def warned(*said, **more):
    """Return the warnings of a step in which these texts and tokens were said, `fine` otherwise."""
    requests = step_requests("job-1", SPEC, 1)
    fine = [(f"fine {number}", varied()) for number in range(len(requests))]
    made = zip(requests, [*said, *fine[len(said) :]], strict=True)
    played = [(request, result_of(request, episode(*one, **more))) for request, one in made]
    return {one.name: one for one in degenerate_warnings(1, trained_seats(played))}


def episode(text, *said, finish_reason="stop"):
    """Return an episode with a turn, in a segment of its own, for each list of tokens."""
    made = one_turn_episode(0.0)
    segments = [made.segments[0].model_copy(update={"token_ids": [1, *tokens]}) for tokens in said]
    turns = [
        made.turns[0].model_copy(
            update={
                "segment": number,
                "start": 1,
                "end": 1 + len(tokens),
                "action": text,
                "finish_reason": finish_reason,
            }
        )
        for number, tokens in enumerate(said)
    ]
    return made.model_copy(update={"segments": segments, "turns": turns})


@pytest.mark.parametrize(
    ("text", "garbled"),
    [
        ("The answer is 5.\n\n\t- really", False),
        ("Привет, 世界! مرحبا 👩\u200d🚀 café", False),
        ("a long enough answer, then a cut character\ufffd", False),
        ("\ufffd\ufffd", False),
        ("", False),
        ("ab\ufffdc\ufffd d\ufffde\ufffd f", True),
        ("\x00\x01\x02 hi", True),
        ("\ue000\ue001\uf8ff", True),
        ("x" * 4000 + "\ufffd" * 4000, False),
    ],
)
def test_tells_text_from_garbled_bytes(text, garbled):
    assert is_garbled(text) is garbled


@pytest.mark.parametrize(
    ("tokens", "is_loop"),
    [
        (VARIED, False),
        ([5] * 64, True),
        ([5] * 63, False),
        ([*range(40)] * 7, True),
        ([part for row in range(60) for part in (1, 2, row, 3, 4, 100 + row)], False),
    ],
)
def test_finds_loops_of_several_tokens(tokens, is_loop):
    assert loops(tokens) is is_loop


def test_warns_of_nothing_in_a_step_that_is_in_order():
    assert warned() == {}
    assert warned(*[("\ufffd" * 9, [1])] * 3) == {}


def test_names_the_episodes_that_are_garbled():
    warning = warned(*[("fine, too", VARIED)] * 2, *[("\ufffd" * 9, [1])] * 4)["garbled_completions"]
    assert warning.count == 4
    assert warning.episodes == [f"job-1:1:{index}" for index in range(2, 6)]


def test_warns_of_loops_that_a_limit_cut():
    looping = [(f"loop {number}", [*varied(), *[7, 8, 9] * 60]) for number in range(5)]
    found = warned(*looping, finish_reason="length")
    assert {name: one.count for name, one in found.items()} == {"looping_completions": 5}
    # Sparse boards and padded tables repeat as much, and end by themselves.
    assert warned(*looping) == {}


def test_warns_of_one_long_answer_to_different_tasks():
    assert warned(*[("the same", VARIED)] * 8)["repeated_completions"].count == 8
    # In one group, and in short answers such as moves, the same is no fault.
    assert warned(*[("the same", VARIED)] * 4) == {}
    assert warned(*[("the same", VARIED[:20])] * 16) == {}


def test_accepts_one_action_after_thoughts_that_differ():
    assert warned(*[("A", varied()) for _ in range(16)]) == {}


def test_accepts_agents_whose_first_call_is_the_same():
    assert warned(*[("call", VARIED[:64], varied()) for _ in range(16)]) == {}
    assert warned(*[("call", VARIED[:64], VARIED)] * 16)["repeated_completions"].count == 16
