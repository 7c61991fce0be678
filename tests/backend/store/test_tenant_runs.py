import json

import pytest

from backend.store.kept_episodes import KeptEpisodes
from backend.store.local_blobs import LocalBlobs
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.trajectory.trajectory import StopReason, Trajectory


class MovedMeanwhile(KeptEpisodes):
    """Files of a job whose checkpoint comes while they are looked at."""

    def __init__(self, files, move, *, at):
        super().__init__(files)
        self._move, self._at = move, at

    @property
    def steps(self):
        before = super().steps
        if self._at == "list":
            self._move()
        return before

    def read(self, step):
        yield from super().read(step)
        if self._at == "read":
            self._move()


@pytest.mark.parametrize("at", ["list", "read"])
def test_misses_no_step_that_moves_into_a_file_meanwhile(store, spec, tmp_path, at):
    ada, service, files = store.tenant("ada"), store.service(), LocalBlobs(tmp_path / "kept")
    lease = service.acquire(ada.create_job(spec, {}).job_id, "w", 30, now=0)
    lost = Trajectory(
        segments=[],
        turns=[],
        terminated=False,
        truncated=True,
        stop_reason=StopReason.ENVIRONMENT_ERROR,
        seed=0,
    )
    result = EpisodeResult(episode_id=f"{lease.job_id}:1:0", lease_id="l", trajectories=[lost])
    service.save_episodes(lease, 1, [result])

    def move():
        for step, packed in service.packed_episodes(lease.job_id, 1):
            KeptEpisodes(files).write(step, packed, epoch=1)
        service.discard_episodes(lease, through_step=1)

    found = list(ada.stored_episodes(lease.job_id, MovedMeanwhile(files, move, at=at)))
    assert [json.loads(body)["episode_id"] for body in found] == [result.episode_id]
