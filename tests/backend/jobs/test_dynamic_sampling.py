from __future__ import annotations

import gymnasium as gym
import pytest

from backend.episodes.episode_requests import group_requests, step_requests
from backend.jobs.dynamic_sampling import learned_from, rounds_so_far
from backend.jobs.train_batch import train_batch
from tests.backend.seats import result_of, two_seats
from tinkergym.algorithms import GRPO
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, Sampling
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.spaces import Text
from tinkergym.testing.made_up_episodes import one_turn_episode as episode
from tinkergym.trajectory.trajectory import StopReason, Trajectory


def job(rounds=2, **settings):
    algorithm = GRPO(group_size=2, groups_per_step=3, dynamic_sampling_rounds=rounds, **settings)
    return RLSpec(
        environment=EnvironmentRef(id="x"),
        steps=1,
        algorithm=algorithm,
        sampling=Sampling(max_turn_tokens=8),
    )


def played(spec, groups):
    """One pair of returns per group, by the group's number."""
    pairs = []
    for group, returns in groups.items():
        for request, reward in zip(group_requests("job-1", spec, 1, [group]), returns, strict=True):
            trajectory = reward if isinstance(reward, Trajectory) else episode(reward)
            pairs.append(
                (
                    request,
                    EpisodeResult(episode_id=request.episode_id, lease_id="l", trajectories=[trajectory]),
                )
            )
    return pairs


SPLIT, SAME = (0.0, 1.0), (1.0, 1.0)


def test_replaces_silent_groups_in_their_places_round_by_round():
    spec = job(rounds=2)
    first = {0: SPLIT, 1: SAME, 2: SAME}
    assert rounds_so_far(spec, played(spec, first)).wanted == [3, 4]
    second = {**first, 3: SAME, 4: SPLIT}
    assert rounds_so_far(spec, played(spec, second)).wanted == [5]
    third = {**second, 5: SAME}
    rounds = rounds_so_far(spec, played(spec, third))
    assert (rounds.wanted, rounds.groups, rounds.replaced) == ([], [0, 5, 4], 3)


def test_keeps_group_that_tells_completions_of_one_seat_apart():
    spec = job(rounds=1)
    pairs = {0: [(1.0, -1.0), (0.0, 0.0)], 1: [(0.0, 5.0), (0.0, 5.0)], 2: [(0.0, 1.0), (0.0, 2.0)]}
    found = [
        (request, result_of(request, episode(x, agent="x"), episode(o, agent="o")))
        for group, returns in pairs.items()
        for request, (x, o) in zip(
            map(two_seats, group_requests("job-1", spec, 1, [group])), returns, strict=True
        )
    ]
    # In group 1 each seat earned the same twice, whatever the other earned.
    assert rounds_so_far(spec, found).wanted == [3]


@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_replaces_and_counts_group_whose_returns_differ_by_rounding(credit):
    pair = (several_turns(0.1, 0.2), several_turns(0.3, 0.0))
    if credit == "turn":
        pair = (several_turns(0.1 + 0.2), several_turns(0.3))
    found = played(job(rounds=1, credit=credit), {0: pair, 1: SPLIT, 2: SPLIT})
    assert rounds_so_far(job(rounds=1, credit=credit), found).wanted == [3]
    learned = train_batch(job(rounds=0, credit=credit), 1, found, never, never)
    assert learned.metrics["zero_variance_groups"] == 1


def test_keeps_batch_size_with_silent_groups_after_the_last_round():
    spec = job(rounds=1)
    everything = played(spec, dict.fromkeys(range(6), SAME))
    kept, replaced = learned_from(spec, everything)
    assert [request.group for request, _ in kept] == [3, 3, 4, 4, 5, 5]
    assert replaced == 3


def test_needs_no_round_without_silent_groups():
    spec = job()
    rounds = rounds_so_far(spec, played(spec, {0: SPLIT, 1: SPLIT, 2: SPLIT}))
    assert (rounds.wanted, rounds.groups, rounds.replaced) == ([], [0, 1, 2], 0)


def test_replaces_group_that_failures_left_without_comparison_too():
    spec = job()
    failed = episode(0.0, StopReason.ENVIRONMENT_ERROR)
    rounds = rounds_so_far(spec, played(spec, {0: SPLIT, 1: (failed, 1.0), 2: SPLIT}))
    assert rounds.wanted == [3]


def several_turns(*rewards):
    """An episode of several answers of one token each."""
    one = episode()
    segment, turn = one.segments[0], one.turns[0]
    turns = [
        turn.model_copy(update={"start": 2 * k + 1, "end": 2 * k + 2, "reward": reward})
        for k, reward in enumerate(rewards)
    ]
    longer = {name: getattr(segment, name) * len(turns) for name in type(segment).model_fields}
    return one.model_copy(update={"segments": [segment.model_copy(update=longer)], "turns": turns})


@pytest.mark.parametrize(
    ("pair", "silent"),
    [
        (((0.0, 0.0), (0.0, 0.0, 0.0)), True),
        (((1.0, 0.0), (1.0,)), True),
        (((1.0,), (0.0, 1.0)), True),
        (((0.0, 1.0), (1.0, 0.0)), False),
        (((0.0, 0.0), (0.0, 0.0, 1.0)), False),
    ],
)
def test_calls_turnwise_group_silent_if_no_turn_went_better(pair, silent):
    spec = job(rounds=1, credit="turn")
    group = tuple(several_turns(*rewards) for rewards in pair)
    found = played(spec, {0: group, 1: SPLIT, 2: SPLIT})
    assert rounds_so_far(spec, found).wanted == ([3] if silent else [])
    learned = train_batch(job(rounds=0, credit="turn"), 1, found, never, never)
    assert learned.metrics["zero_variance_groups"] == silent


def answer(reward, tokens):
    """An episode of one answer of so many tokens."""
    one = episode(reward)
    longer = {
        "token_ids": [1] + [2] * tokens,
        "loss_mask": [False] + [True] * tokens,
        "sampling_logprobs": [None] + [-0.5] * tokens,
    }
    return one.model_copy(
        update={
            "segments": [one.segments[0].model_copy(update=longer)],
            "turns": [one.turns[0].model_copy(update={"end": 1 + tokens})],
        }
    )


@pytest.mark.parametrize("credit", ["episode", "turn"])
@pytest.mark.parametrize(
    ("pair", "silent"),
    [
        (((1.0, 8), (1.0, 4)), False),  # the same reward, but one of them was too long
        (((1.0, 8), (0.5, 4)), True),  # the better one was longer by as much as it was better
    ],
)
def test_calls_group_silent_by_the_rewards_that_compare_it(pair, silent, credit):
    settings = {"credit": credit, "overlong_tokens": 4, "overlong_penalty": 0.5}
    found = played(job(rounds=1, **settings), {0: tuple(answer(*one) for one in pair), 1: SPLIT, 2: SPLIT})
    assert rounds_so_far(job(rounds=1, **settings), found).wanted == ([3] if silent else [])
    learned = train_batch(job(rounds=0, **settings), 1, found, never, never)
    assert learned.metrics["zero_variance_groups"] == silent


def never(sequences):
    raise AssertionError("nothing of this needs a model")


def test_learns_from_everything_without_rounds():
    spec = job(rounds=0)
    everything = played(spec, {0: SAME, 1: SAME, 2: SAME})
    assert learned_from(spec, everything) == (everything, 0)


def test_gives_replacements_own_seeds_and_ids():
    spec = job()
    first, new = step_requests("job-1", spec, 1), group_requests("job-1", spec, 1, [3, 4])
    assert not {r.episode_id for r in first} & {r.episode_id for r in new}
    assert not {r.seed for r in first} & {r.seed for r in new}
    assert [r.index for r in new] == [6, 7, 8, 9]
    assert [r.index for r in first] == list(range(6))


# --- in a job --------------------------------------------------------------------------------------------


class Dull(gym.Env):
    """Pays for short answers at some seeds, and nothing at the others."""

    observation_space = Text(100)
    action_space = Text(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.pays = seed % 3 == 0
        return "say something", {}

    def step(self, action):
        return "", -float(len(action)) * self.pays, True, False, {}


@pytest.fixture
def jobs(jobs, register_environment):
    register_environment("test/Dull-v0", Dull)
    return jobs


DULL = {"environment": EnvironmentRef(id="test/Dull-v0"), "steps": 2, "seed": 4}


def algorithm(rounds):
    return GRPO(group_size=3, groups_per_step=3, dynamic_sampling_rounds=rounds)


def test_replaces_silent_groups_in_job_and_counts_them(jobs):
    plain, replacing = (jobs.start(**DULL, algorithm=algorithm(rounds)) for rounds in (0, 3))
    for job_id in (plain, replacing):
        jobs.play_on(job_id)
        assert jobs.state(job_id) is JobState.COMPLETED
    without, steps = jobs.events(plain, "step"), jobs.events(replacing, "step")
    assert all(step.episodes == 9 for step in without)
    assert sum(step.metrics["zero_variance_groups"] for step in without) > sum(
        step.metrics["zero_variance_groups"] for step in steps
    )
    for step in steps:
        assert step.episodes == 9 + 3 * step.metrics["replaced_groups"]
    assert any(step.metrics["replaced_groups"] for step in steps)


def test_resumes_mid_round_with_the_same_weights(jobs):
    smooth = jobs.start(**DULL, algorithm=algorithm(3))
    jobs.play_on(smooth)
    replaced = jobs.events(smooth, "step")[0].metrics["replaced_groups"]
    assert replaced
    broken = jobs.start(**DULL, algorithm=algorithm(3))
    jobs.play_step(broken)
    second_round = jobs.lease(broken)
    assert second_round[0].group == 3 and second_round[0].step == 1
    jobs.submit(broken, jobs.play(second_round[:1]))
    jobs.take_over(broken)
    left = jobs.lease(broken)
    assert [r.episode_id for r in left] == [r.episode_id for r in second_round[1:]]
    jobs.submit(broken, jobs.play(left))
    jobs.play_on(broken)
    assert jobs.state(broken) is JobState.COMPLETED
    assert jobs.events(broken, "step")[0].metrics["replaced_groups"] == replaced
    assert jobs.events(broken, "warning") == []


def test_replays_stored_rounds_to_the_bit(jobs):
    job_id = jobs.start(**DULL, algorithm=algorithm(3))
    while not jobs.events(job_id, "step"):
        jobs.play_step(job_id)
    first = jobs.weights(job_id, 1)
    jobs.take_over(job_id)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    assert jobs.weights(job_id, 1) == first
    assert jobs.events(job_id, "warning") == []


@pytest.mark.parametrize("interrupted", [False, True])
def test_repeats_rounds_to_the_bit_in_lockstep(jobs, interrupted):
    settings = {**DULL, "deterministic": True, "algorithm": algorithm(3)}
    smooth = jobs.start(**settings)
    jobs.play_on(smooth)
    again = jobs.start(**settings)
    if interrupted:
        jobs.play_step(again)
        assert jobs.lease(again)[0].group == 3
        jobs.replace_worker()
        jobs.start_job(again)
    jobs.play_on(again)
    assert jobs.weights(again, 2) == jobs.weights(smooth, 2)
