"""Traps of a whole job: episodes that count twice, not at all, or as what they are not."""

import pytest

from tests.backend.lab import Lab
from tests.backend.watched_jobs import Fickle
from tinkergym.algorithms import GRPO
from tinkergym.errors import InvalidRequestError
from tinkergym.registration.environments import register, unregister
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import JobState
from tinkergym.trajectory.trajectory import StopReason

ALGORITHM = GRPO(group_size=3, groups_per_step=2, learning_rate=1e-2)


@pytest.fixture(scope="module")
def played(warm_site):
    """The episodes of a step, and what is learned from them; for all tests of the file."""
    register("test/Fickle-v0", Fickle)
    lab = Lab(warm_site)
    job_id = lab.start(steps=1, algorithm=ALGORITHM)
    results = lab.play(lab.lease(job_id))
    lab.tenant.request_cancel(job_id)
    ordered = sorted(results, key=lambda result: _index(result.episode_id))
    # Returns that differ within each group, whatever was sampled.
    episodes = [_earning(result.trajectory, float(i % 3)) for i, result in enumerate(ordered)]
    learned, _ = Table(lab, episodes).weights()
    lab.leave()
    unregister("test/Fickle-v0")
    return episodes, learned


@pytest.fixture
def table(lab, played):
    return Table(lab, *played)


class Table:
    """Hands in a step's episodes to as many jobs as are to be compared."""

    def __init__(self, lab, results, learned=""):
        self.lab, self.results = lab, results
        self.learned = learned
        """The weights after a step on the episodes as they are."""

    def weights(self, change=lambda index, trajectory: trajectory, *, twice=False, restart=False):
        """The weights after one step on these episodes, each changed by `change`, and the step's event."""
        lab = self.lab
        job_id = lab.start(steps=1, algorithm=ALGORITHM, max_failed_fraction=1.0, checkpoint_every=1)
        leases = {_index(request.episode_id): request for request in lab.lease(job_id)}
        results = [
            EpisodeResult(
                episode_id=leases[index].episode_id,
                lease_id=leases[index].lease_id,
                trajectories=[change(index, trajectory)],
            )
            for index, trajectory in enumerate(self.results)
        ]
        if twice:
            assert lab.submit(job_id, results[:4]) == ["accepted"] * 4
            # The answer was lost on the way, and the worker sends them again, once changed by a bug.
            again = [
                result.model_copy(update={"trajectories": [_earning(result.trajectory, 7.0)]})
                for result in reversed(results[:4])
            ]
            assert lab.submit(job_id, again) == ["duplicate"] * 4
        if restart:
            lab.replace_pool()
            lab.pool.start_job(job_id)
            leases = {_index(request.episode_id): request for request in lab.lease(job_id)}
            assert sorted(leases) == [4, 5]  # the others are stored and played no more
            results[4:] = [
                result.model_copy(update={"lease_id": leases[index].lease_id})
                for index, result in enumerate(results[4:], start=4)
            ]
        lab.submit(job_id, results[4:] if twice else results)
        lab.until(job_id, lambda: lab.state(job_id).final)
        assert lab.state(job_id) is JobState.COMPLETED
        (event,) = lab.events(job_id, "step")
        return lab.weights(job_id, 1), event


def _index(episode_id):
    return int(episode_id.rpartition(":")[2])


def _earning(trajectory, reward):
    (turn,) = trajectory.turns
    return trajectory.model_copy(update={"turns": [turn.model_copy(update={"reward": reward})]})


def _failed(trajectory, reward=0.0):
    return _earning(trajectory, reward).model_copy(
        update={"terminated": False, "stop_reason": StopReason.ENVIRONMENT_ERROR, "error": "it broke"}
    )


@pytest.mark.parametrize("restart", [False, True], ids=["same worker", "after its death"])
def test_counts_once_an_episode_handed_in_twice(table, restart):
    """Fails when a result is stored whatever is there already, so that the repetition's is learned from."""
    again, event = table.weights(twice=True, restart=restart)
    assert again == table.learned
    assert event.episodes == 6


def test_compares_group_without_failed_episode_instead_of_counting_0(table):
    """Fails when failed episodes enter the mean of their group."""
    dropped = [
        table.weights(lambda i, t, reward=reward: _failed(t, reward) if i == 1 else t)
        for reward in (0.0, -100.0)
    ]
    assert dropped[0][0] == dropped[1][0] != table.learned
    assert dropped[0][1].failed_episodes == 1
    assert dropped[0][1].metrics["broken_groups"] == 0


def test_counts_group_left_with_one_episode_and_teaches_nothing(table):
    """Fails when a lone episode is compared with 0, or with another group."""

    def broken(reward):
        return lambda i, t: _failed(t) if i in {0, 1} else (_earning(t, reward) if i == 2 else t)

    low, high = table.weights(broken(0.0)), table.weights(broken(9.0))
    assert low[0] == high[0]
    assert low[1].metrics["broken_groups"] == high[1].metrics["broken_groups"] == 1
    assert low[1].failed_episodes == 2


@pytest.mark.parametrize(
    "reason",
    [
        StopReason.TRUNCATED,
        *(
            pytest.param(reason, marks=pytest.mark.full("counts as `TRUNCATED`"))
            for reason in (StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT, StopReason.CONTEXT_LIMIT)
        ),
    ],
)
def test_counts_cut_episode_as_its_return_says(table, reason):
    """Fails when a cut episode is taken for a failed one, or its return for 0."""
    cut, event = table.weights(
        lambda i, t: (
            t
            if i % 2
            else t.model_copy(update={"terminated": False, "truncated": True, "stop_reason": reason})
        )
    )
    assert cut == table.learned
    assert event.failed_episodes == 0
    assert event.stop_reasons[reason] == 3


def test_learns_cut_answer_as_it_was_sampled(table):
    """Fails when an end that nobody sampled is put behind a cut answer and learned."""
    for trajectory in table.results:
        (turn,), (segment,) = trajectory.turns, trajectory.segments
        assert turn.finish_reason in {"length", "stop"}
        assert sum(segment.loss_mask) == turn.end - turn.start <= 4
        stops = set(table.lab.pool.routes.renderer("nano").stop_ids)
        sampled = segment.token_ids[turn.start : turn.end]
        assert (sampled[-1] in stops) == (turn.finish_reason == "stop")
        assert len(segment.token_ids) == turn.end
    assert any(t.turns[0].finish_reason == "length" for t in table.results)


def test_stamps_every_answer_with_its_sampling_version_over_restarts(lab):
    """Fails when the resumed job's requests ask for another version than the one before their step."""
    job_id = lab.start(steps=2, checkpoint_every=1)
    lab.play_step(job_id)
    lab.until(job_id, lambda: lab.events(job_id, "step"))
    lab.replace_pool()
    lab.pool.start_job(job_id)
    requests = lab.lease(job_id)
    assert {
        (request.step, seat.policy_version) for request in requests for seat in request.seats.values()
    } == {(2, 1)}
    results = lab.play(requests)
    assert {turn.policy_version for result in results for turn in result.trajectory.turns} == {1}
    stale = [
        result.model_copy(
            update={
                "trajectories": [
                    result.trajectory.model_copy(
                        update={
                            "turns": [
                                turn.model_copy(update={"policy_version": 0})
                                for turn in result.trajectory.turns
                            ]
                        }
                    )
                ]
            }
        )
        for result in results
    ]
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "results.trajectories"):
        lab.submit(job_id, stale)
