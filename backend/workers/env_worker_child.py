"""The process of an environment worker, from the side of the process that starts it."""

from __future__ import annotations

import json
import logging
import subprocess

from backend.config import ServiceConfig
from backend.episodes.env_worker_end import EnvWorkerFiles, WorkerRemains
from backend.processes import quick_start
from backend.processes.foreign_code import environment_for_packs
from backend.processes.memory import resident_bytes

_log = logging.getLogger(__name__)


class EnvWorkerChild:
    """A child, because packs must not run in a process that is connected to Ray.

    It imports its needs while its pool still loads the model. The kernel ends it with its starter's thread.
    """

    def __init__(self, config: ServiceConfig, worker_id: str) -> None:
        self._config, self._worker_id = config, worker_id
        self._child = subprocess.Popen(
            quick_start.command("backend.workers.env_worker_process"),
            stdin=subprocess.PIPE,
            env=environment_for_packs(config.environment_variables),
            start_new_session=True,
        )

    def play(self, address: tuple[str, str]) -> WorkerRemains:
        """Play for the pool at this URL with this token until the child ends, and return what remains."""
        url, token = address
        question = {
            # A server's URL may contain a password; packs run there.
            "config": self._config.model_dump(mode="json", exclude={"database_url"}),
            "url": url,
            "token": token,
            "worker_id": self._worker_id,
        }
        self._child.communicate(json.dumps(question).encode())
        _log.warning("environment worker %s ended (%d)", self._worker_id, self._child.returncode)
        return EnvWorkerFiles(self._config.run_dir, self._worker_id).collect()

    def memory(self) -> int:
        """Return the memory of the child and its children in bytes; 0 when it has ended."""
        return resident_bytes(self._child.pid)

    def kill(self) -> None:
        """Kill the child, which may hang; `play` then returns."""
        self._child.kill()
