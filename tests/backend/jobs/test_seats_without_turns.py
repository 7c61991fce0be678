"""A game may end before a trained seat's first turn: an outcome to count, without tokens to train on."""

from __future__ import annotations

import pytest

from backend.episodes.episode_requests import step_requests
from backend.episodes.played import is_lost, trained_seats
from backend.jobs.run_evidence import RunEvidence
from backend.jobs.step_report import failure_warnings, statistics
from backend.jobs.train_batch import outcomes_of, train_batch
from tests.backend.jobs.played_episodes import episode, job, never
from tests.backend.seats import result_of, two_seats
from tinkergym.algorithms import GRPO, PPO, RLOO, RunningBaseline
from tinkergym.trajectory.trajectory import StopReason

MOVED = episode((1.0, 2, "stop"))


def unmoved(reward, stop=StopReason.TERMINATED):
    return episode(stop=stop).model_copy(update={"segments": [], "early_reward": reward})


def played(*trajectories, algorithm=GRPO, **settings):
    spec = job(algorithm(group_size=len(trajectories), groups_per_step=1), **settings)
    return spec, [
        (request, result_of(request, one))
        for request, one in zip(step_requests("job-1", spec, 1), trajectories, strict=True)
    ]


@pytest.mark.parametrize("stop", [StopReason.TERMINATED, StopReason.TRUNCATED, StopReason.TURN_LIMIT])
def test_counts_reward_of_seat_without_turns(stop):
    _, episodes = played(MOVED, unmoved(-1.0, stop))
    counted = statistics(episodes)
    assert (counted.reward_mean, counted.reward_std, counted.failed_episodes) == (0.0, 1.0, 0)
    assert failure_warnings(episodes, 1) == []


@pytest.mark.parametrize("stop", [StopReason.CONTEXT_LIMIT, StopReason.EPISODE_TIMEOUT])
def test_loses_episode_that_its_own_limit_cut_before_a_turn(stop):
    _, ((_, result),) = played(unmoved(0.0, stop), algorithm=lambda **_: RunningBaseline(groups_per_step=1))
    assert is_lost(result)


@pytest.mark.parametrize(("algorithm", "advantage"), [(GRPO, 1.0), (RLOO, 2.0)])
def test_compares_siblings_with_seat_without_turns(algorithm, advantage):
    spec, episodes = played(MOVED, unmoved(-1.0), algorithm=algorithm)
    found = train_batch(spec, 1, episodes, reference=never, values=never)
    assert [sequence.advantage for sequence in found.sequences] == [advantage]
    assert (found.metrics["compared_groups"], found.metrics["broken_groups"]) == (1, 0)


def test_compares_no_turn_with_seat_without_turns():
    spec, episodes = played(MOVED, unmoved(-1.0), algorithm=lambda **sizes: GRPO(**sizes, credit="turn"))
    found = train_batch(spec, 1, episodes, reference=never, values=never)
    assert ([s.advantage for s in found.sequences], found.metrics["lone_turns"]) == ([[0.0] * 4], 1)


def test_trains_value_head_without_seat_without_turns():
    spec, episodes = played(unmoved(1.0), unmoved(-1.0), algorithm=PPO)
    assert train_batch(spec, 1, episodes, reference=never, values=never).sequences == []


def test_adds_reward_without_turns_to_running_baseline():
    spec, episodes = played(unmoved(3.0), algorithm=lambda **_: RunningBaseline(groups_per_step=1))
    memory = {}
    spec.algorithm.remember(outcomes_of(spec, trained_seats(episodes, "job-1")), memory)
    assert [spec.algorithm.mean(memory, key) for key in memory] == [pytest.approx(3.0)]


def test_certifies_episode_without_turns_as_dropped():
    """That of an opponent who moved is no reason to call it anything else."""
    spec = job(GRPO(group_size=2, groups_per_step=1))
    (first, second) = (two_seats(one, trained="x") for one in step_requests("job-1", spec, 1))
    seats = [unmoved(1.0).model_copy(update={"agent": "x"}), MOVED.model_copy(update={"agent": "o"})]
    episodes = [(one, result_of(one, *seats)) for one in (first, second)]
    counted, _ = RunEvidence().step(
        spec,
        1,
        1,
        episodes,
        stored={},
        issued={},
        learned_from=[first.episode_id, second.episode_id],
        learning_rates={},
    )
    assert (counted.episodes, counted.trained, counted.dropped) == (2, 0, {"no_turns": 2})
