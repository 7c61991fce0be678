"""How an environment worker ended, which decides whose fault it may have been, and the files that say so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tinkergym.rollout.call_register import episodes_in_calls

_STALL_CHARACTERS = 4000
FOLDER = "env-workers"

WorkerEnd = Literal["died", "silent", "not_needed"]
"""By itself, or by the scheduler: because it was silent, or no longer needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRemains:
    """What is known of an environment worker after its end, from the machine on which it ran."""

    in_calls: tuple[str, ...] = ()
    """Episodes that were inside a call of their environment."""
    stall: str = ""
    """The stacks of a worker that was ended because its interpreter was blocked."""


class EnvWorkerFiles:
    """What an environment worker leaves behind for the process that started it, on the same machine."""

    def __init__(self, run_dir: Path, worker_id: str) -> None:
        """Set the names; nothing is created."""
        self._folder = run_dir / FOLDER
        self.calls = self._folder / f"{worker_id}.calls"
        """See `CallRegister`."""
        self.trace = self._folder / f"{worker_id}.stall"
        """See `end_on_stall`."""

    def create(self) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def collect(self) -> WorkerRemains:
        """Return what the files of a dead worker say, and remove them."""
        try:
            stall = self.trace.read_text("utf-8", "replace")[:_STALL_CHARACTERS]
        except OSError:
            stall = ""
        remains = WorkerRemains(in_calls=tuple(episodes_in_calls(self.calls)), stall=stall)
        self.calls.unlink(missing_ok=True)
        self.trace.unlink(missing_ok=True)
        return remains
