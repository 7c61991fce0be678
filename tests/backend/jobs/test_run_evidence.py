"""Facts of a step from what was played, captured and trained on, counted token by token."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from backend.episodes.played import PlayedSeat
from backend.jobs.run_evidence import RunEvidence, Source, captured_by_turn
from backend.learner.sequences import TrainSequence
from backend.store.episode_results import StoredEpisode
from tinkergym.algorithms import GRPO
from tinkergym.schema.certificate import StepFacts, StepLedger
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.trajectory.ledger import NO_DIGEST, completion_digest
from tinkergym.trajectory.trajectory import ONLY_AGENT, Segment, StopReason, Trajectory, Turn

SPEC = RLSpec(environment=EnvironmentRef(id="own/Env-v0"), steps=1)
IDS = [10, 11, 12, 13, 14, 15, 16]
TURNS = [(1, 2), (3, 5)]
"""A prompt, a turn of one token, a prompt, a turn of two; then two tokens of the environment."""


def played_by(agent=ONLY_AGENT, *, number=0, ids=IDS, turns=TURNS, stop=StopReason.TERMINATED, **fields):
    """Return a trajectory with these turns in one segment, sampled by version 4."""
    mask = [any(start <= place < end for start, end in turns) for place in range(len(ids))]
    return Trajectory(
        agent=agent,
        segments=[
            Segment(token_ids=ids, loss_mask=mask, sampling_logprobs=[-1.0 if one else None for one in mask])
        ],
        turns=[
            Turn(
                segment=0,
                start=start,
                end=end,
                policy_version=4,
                finish_reason=fields.get("finish_reason", "stop"),
                observation="",
                action="",
                reward=0.0,
            )
            for start, end in turns
        ],
        terminated=stop is StopReason.TERMINATED,
        truncated=False,
        stop_reason=stop,
        seed=number,
        retries=fields.get("retries", 0),
    )


def digests(*trajectories):
    return b"".join(
        completion_digest(turn.policy_version, one.segments[turn.segment].token_ids[turn.start : turn.end])
        for one in trajectories
        for turn in one.turns
    )


def learned(trajectory, **changes):
    """Return the learner's input for a trajectory's only segment."""
    segment = trajectory.segments[0]
    sequence = TrainSequence(
        token_ids=segment.token_ids,
        loss_mask=segment.loss_mask,
        sampling_logprobs=[-1.0] * len(segment.token_ids),
    )
    return replace(sequence, **changes)


def step(
    *trajectories,
    sequences=(),
    captured=None,
    trained=(ONLY_AGENT,),
    spec=SPEC,
    issued=1,
    stayed=True,
    stored=True,
    evidence=None,
):
    """Return the facts and the fate of the only episode of a step."""
    request = SimpleNamespace(
        episode_id="job-1:1:0",
        seats={one.agent: SimpleNamespace(trained=one.agent in trained) for one in trajectories},
    )
    result = EpisodeResult(episode_id=request.episode_id, lease_id="lease", trajectories=list(trajectories))
    evidence = evidence or RunEvidence()
    of = {one.agent: one for one in trajectories}
    sources = [Source(PlayedSeat(request, of[agent]), 0) for agent, _ in sequences]
    evidence.trained(sources, [sequence for _, sequence in sequences])
    row = StoredEpisode(sha256="a" * 64, captured=digests(*trajectories) if captured is None else captured)
    counted, facts = evidence.step(
        spec,
        1,
        3,
        [(request, result)],
        stored={request.episode_id: row} if stored else {},
        issued={request.episode_id: issued},
        learned_from=[request.episode_id] if stayed else [],
        learning_rates={"": 0.5},
    )
    ledger = next(fact for fact in facts if fact.kind == "ledger").body
    assert counted.ledger_sha256 == hashlib.sha256(ledger).hexdigest()
    (fate,) = StepLedger.model_validate_json(ledger).episodes
    return counted, fate


def tokens(counted: StepFacts):
    return counted.sampled_tokens, counted.captured_tokens, counted.trained_tokens, counted.matched_tokens


ONE = played_by()
SEQUENCE = learned(ONE)


def with_token(place, token):
    return [*IDS[:place], token, *IDS[place + 1 :]]


def with_mask(*places):
    return [place in places for place in range(len(IDS))]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (3, 3, 3, 3)),
        # Another token in the second turn than the engine returned.
        ({"token_ids": with_token(4, 99)}, (3, 3, 3, 1)),
        ({"token_ids": with_token(1, 99)}, (3, 3, 3, 2)),
        # A prompt's token is nobody's completion.
        ({"token_ids": with_token(2, 99)}, (3, 3, 3, 3)),
        # Trained tokens outside all turns.
        ({"loss_mask": with_mask(1, 3, 4, 5)}, (3, 3, 4, 3)),
        ({"loss_mask": with_mask(5, 6)}, (3, 3, 2, 0)),
        # A turn of which a part is trained on.
        ({"loss_mask": with_mask(1, 3)}, (3, 3, 2, 1)),
        ({"loss_mask": with_mask(1)}, (3, 3, 1, 1)),
    ],
)
def test_counts_tokens_that_the_engine_sampled(change, expected):
    counted, fate = step(ONE, sequences=[(ONLY_AGENT, replace(SEQUENCE, **change))])
    assert tokens(counted) == expected
    assert (fate.trained_tokens, fate.matched_tokens) == expected[2:]
    assert (counted.trained, fate.fate, fate.why) == (1, "trained", "")


def test_matches_each_turn_with_its_own_completion():
    first, second = (digests(played_by(turns=[turn])) for turn in TURNS)
    for captured, matched, known in (
        (second + first, 0, 3),
        (first + first, 1, 3),
        (first, 1, 1),
        (NO_DIGEST + second, 2, 2),
        (b"", 0, 0),
    ):
        counted, _ = step(ONE, sequences=[(ONLY_AGENT, SEQUENCE)], captured=captured)
        assert tokens(counted) == (3, known, 3, matched)


def test_matches_no_completion_of_another_version():
    turns = [turn.model_copy(update={"policy_version": 5}) for turn in ONE.turns]
    counted, _ = step(
        ONE,
        sequences=[(ONLY_AGENT, SEQUENCE)],
        captured=digests(ONE.model_copy(update={"turns": turns})),
    )
    assert tokens(counted) == (3, 3, 3, 0)


def test_matches_segments_by_their_number():
    turns = [turn.model_copy(update={"segment": number}) for number, turn in enumerate(ONE.turns)]
    apart = ONE.model_copy(update={"turns": turns, "segments": ONE.segments * 2})
    counted, _ = step(apart, sequences=[(ONLY_AGENT, replace(SEQUENCE, loss_mask=with_mask(1)))])
    # Of the first segment only; the second one was not trained on.
    assert tokens(counted)[2:] == (1, 1)


def test_counts_the_seats_that_are_trained():
    left, right = played_by("left"), played_by("right", ids=[number + 50 for number in IDS])
    both = {"left": learned(left), "right": learned(right)}
    for trained in (("left",), ("right",), ("left", "right")):
        counted, _ = step(left, right, sequences=[(one, both[one]) for one in trained], trained=trained)
        assert tokens(counted) == (3 * len(trained),) * 4
    swapped = [("left", both["right"]), ("right", both["left"])]
    assert tokens(step(left, right, sequences=swapped, trained=("left", "right"))[0]) == (6, 6, 6, 0)


def test_knows_the_captured_turns_by_agent_and_number():
    left, right = played_by("left"), played_by("right")
    result = EpisodeResult(episode_id="job-1:1:0", lease_id="", trajectories=[left, right])
    found = captured_by_turn(result, digests(left) + NO_DIGEST + digests(played_by(turns=TURNS[1:])))
    assert found.keys() == {("left", 0), ("left", 1), ("right", 1)}
    assert found["right", 1] == found["left", 1] != found["left", 0]


def test_forgets_a_step_that_is_recorded():
    evidence = RunEvidence()
    extra = replace(SEQUENCE, loss_mask=with_mask(1, 3, 4, 5))
    assert tokens(step(ONE, sequences=[(ONLY_AGENT, extra)], evidence=evidence)[0])[2] == 4
    assert tokens(step(ONE, evidence=evidence)[0])[2] == 0


def test_records_how_often_an_episode_was_played():
    counted, fate = step(
        played_by("left", retries=1), played_by("right", retries=2), issued=3, trained=("left",)
    )
    assert (fate.retries, fate.issued, counted.retried, counted.issued_again) == (2, 3, 1, 2)
    counted, fate = step(ONE)
    assert (fate.retries, fate.issued, counted.retried, counted.issued_again) == (0, 1, 0, 0)
    assert (counted.step, counted.attempt, counted.learning_rate, counted.learning_rates) == (1, 3, 0.5, {})


@pytest.mark.parametrize(("stored", "sha256"), [(True, "a" * 64), (False, "")])
def test_pins_the_stored_record(stored, sha256):
    assert step(ONE, stored=stored)[1].sha256 == sha256


MASKING = SPEC.model_copy(update={"algorithm": GRPO(mask_truncated=True)})


@pytest.mark.parametrize(
    ("trajectories", "settings", "why"),
    [
        ([ONE], {}, "nothing_to_compare"),
        ([ONE], {"stayed": False}, "replaced_group"),
        ([played_by(turns=[])], {}, "no_turns"),
        ([played_by(stop=StopReason.ENVIRONMENT_ERROR)], {"stayed": False}, "environment_error"),
        ([played_by(finish_reason="length")], {"spec": MASKING}, "masked"),
        ([played_by(finish_reason="length")], {}, "nothing_to_compare"),
        ([ONE], {"spec": MASKING}, "nothing_to_compare"),
        # The seat that failed, not those that ended with it.
        (
            [
                played_by("left", stop=StopReason.SEAT_FAILED),
                played_by("right", stop=StopReason.ENVIRONMENT_ERROR),
            ],
            {},
            "environment_error",
        ),
    ],
)
def test_says_why_an_episode_was_dropped(trajectories, settings, why):
    counted, fate = step(*trajectories, **settings)
    assert (fate.fate, fate.why) == ("dropped", why)
    assert (counted.episodes, counted.trained, counted.dropped) == (1, 0, {why: 1})
