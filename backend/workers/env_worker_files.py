"""Files that an environment worker leaves behind for the process that finds it dead."""

from __future__ import annotations

from pathlib import Path

_STALL_CHARACTERS = 4000
FOLDER = "env-workers"


class EnvWorkerFiles:
    """The files of one environment worker."""

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

    def stall(self) -> str:
        """Return the stacks of a worker that was ended because its interpreter was blocked, else ""."""
        try:
            return self.trace.read_text("utf-8", "replace")[:_STALL_CHARACTERS]
        except OSError:
            return ""

    def remove(self) -> None:
        """Remove the existing files."""
        self.calls.unlink(missing_ok=True)
        self.trace.unlink(missing_ok=True)
