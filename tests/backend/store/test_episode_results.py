import pytest

from backend.errors import LeaseLostError
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import JobState
from tinkergym.trajectory.content_parts import ImagePart, ImageSpan, TextPart
from tinkergym.trajectory.trajectory import Segment, StopReason, Trajectory, Turn


@pytest.fixture
def lease(store, spec):
    return store.service().acquire(store.tenant("ada").create_job(spec, {}).job_id, "w", 30, now=0)


def result(index, reward=1.0):
    # Logprobs that a careless detour through text or float32 would change.
    segment = Segment(
        token_ids=[1, 2, 3],
        loss_mask=[False, True, True],
        sampling_logprobs=[None, -0.1 - 1e-17, -1 / 3],
    )
    turn = Turn(
        segment=0,
        start=1,
        end=3,
        policy_version=0,
        finish_reason="stop",
        observation="grün 木",
        action="b3",
        reward=reward,
    )
    return EpisodeResult(
        episode_id=f"j:1:{index}",
        lease_id="l",
        trajectories=[
            Trajectory(
                segments=[segment],
                turns=[turn],
                terminated=True,
                truncated=False,
                stop_reason=StopReason.TERMINATED,
                seed=index,
            )
        ],
    )


def test_returns_results_bit_equal_in_order_of_arrival(store, lease):
    service = store.service()
    results = [result(3), result(1), result(2)]
    assert service.save_episodes(lease, 1, results) == ["accepted"] * 3
    assert service.episodes(lease.job_id, 1) == results
    assert service.episodes(lease.job_id, 2) == []


def test_restores_parts_and_images_as_they_were(store, lease):
    service = store.service()
    kept = result(1)
    (segment,), (turn,) = kept.trajectory.segments, kept.trajectory.turns
    image = ImageSpan(sha256="ab" * 32, start=0, end=1)
    parts = [TextPart(text="look"), ImagePart(sha256="ab" * 32)]
    changes = {
        "segments": [segment.model_copy(update={"images": [image]})],
        "turns": [turn.model_copy(update={"observation": parts})],
    }
    kept = kept.model_copy(update={"trajectories": [kept.trajectory.model_copy(update=changes)]})
    service.save_episodes(lease, 1, [kept])
    assert service.episodes(lease.job_id, 1) == [kept]


def test_counts_first_of_two_results_for_one_episode(store, lease):
    service = store.service()
    assert service.save_episodes(lease, 1, [result(1), result(1, reward=9.0)]) == ["accepted", "duplicate"]
    assert service.save_episodes(lease, 1, [result(1, reward=7.0), result(2)]) == ["duplicate", "accepted"]
    assert service.episodes(lease.job_id, 1) == [result(1), result(2)]


@pytest.mark.parametrize("held", [True, False])
def test_keeps_results_of_ended_job_until_it_is_deleted(store, lease, held):
    service = store.service()
    service.save_episodes(lease, 1, [result(1)])
    if held:
        service.set_state(lease, JobState.FAILED)
    else:
        service.release(lease)
        assert service.episodes(lease.job_id, 1) == [result(1)]
        assert service.finish_unleased(lease.job_id, JobState.FAILED, "no worker can run it")
    assert service.episodes(lease.job_id, 1) == [result(1)]
    store.tenant("ada").delete_job(lease.job_id)
    assert service.episodes(lease.job_id, 1) == []


@pytest.mark.parametrize(
    ("bounds", "left"),
    [
        ({"through_step": 2}, {3, 4}),
        ({"from_step": 3}, {1, 2}),
        ({"from_step": 2, "through_step": 3}, {1, 4}),
    ],
)
def test_drops_results_that_are_no_longer_needed(store, lease, bounds, left):
    service = store.service()
    for step in (1, 2, 3, 4):
        service.save_episodes(lease, step, [result(step)])
    service.discard_episodes(lease, **bounds)
    assert {step for step in (1, 2, 3, 4) if service.episodes(lease.job_id, step)} == left


def test_keeps_no_results_handed_in_under_a_lost_lease(store, lease):
    service = store.service()
    service.set_state(lease, JobState.CANCELLED)
    with pytest.raises(LeaseLostError):
        service.save_episodes(lease, 1, [result(1)])
    assert service.episodes(lease.job_id, 1) == []
