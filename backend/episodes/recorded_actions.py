"""The actions of every policy in a job's games, for jobs that replay one of its seats.

One small file per step in the job's folder, kept for as many steps as the job's episodes. It is written
before the step's checkpoint.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field

from backend.episodes.played import Played
from backend.store.blobs import Blobs
from backend.store.step_files import StepFiles
from tinkergym.errors import NotFoundError
from tinkergym.trajectory.content_parts import content_text

_FOLDER = "actions"

Games = dict[str, dict[str, list[str]]]
"""By index of the episode and by agent."""


def actions_of(files: Blobs) -> StepFiles:
    """Return the files with the actions of a job's steps, among the files of the job."""
    return StepFiles(files.below(_FOLDER), ".json.z")


def record(files: Blobs, step: int, played: Played, *, epoch: int) -> None:
    """Write a step's actions to a job's files.

    Args:
        files: The job's files.
        step: Its number.
        played: Its episodes.
        epoch: The epoch of the job's lease.
    """
    games: Games = {
        str(request.index): {
            one.agent: [content_text(turn.action) for turn in one.turns] for one in result.trajectories
        }
        for request, result in played
    }
    actions_of(files).write(step, zlib.compress(json.dumps(games).encode(), 1), epoch=epoch)


@dataclass(slots=True)
class RecordedActions:
    """Reads the recorded actions of other jobs; caches the newest step of each in memory."""

    job_files: Blobs
    """Files of all jobs."""
    _read: dict[str, tuple[int, Games]] = field(default_factory=dict)

    def of(self, job_id: str, step: int, index: int, agent: str) -> list[str]:
        """Return an agent's actions in one episode.

        Raises:
            NotFoundError: The job has no record of that step, or was deleted.
        """
        known = self._read.get(job_id)
        if known is None or known[0] != step:
            data = actions_of(self.job_files.below(job_id)).read(step)
            if data is None:
                raise NotFoundError(
                    f"{job_id} has no record of step {step}", hint="choose another job to replay"
                )
            known = self._read[job_id] = step, json.loads(zlib.decompress(data))
        return known[1].get(str(index), {}).get(agent, [])
