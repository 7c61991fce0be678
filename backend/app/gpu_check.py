"""Whether this machine has the GPUs that the operator's settings ask for, before anything else is started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from backend.config import ServiceConfig
from backend.errors import ConfigError

_COMMAND = (sys.executable, "-m", "backend.workers.device_choice")
_SECONDS = 60.0


def require_gpus(config: ServiceConfig, command: Sequence[str] | None = None) -> None:
    """Ask a child process, which imports torch, whether there are the GPUs of `placement.gpus`, if it is set.

    A check that does not finish refuses nothing: workers check again.

    Raises:
        ConfigError: There is no such GPU.
    """
    gpus = config.placement.gpus
    if not gpus or config.ray.address:  # Of a cluster, other nodes may have them.
        return
    with suppress(subprocess.TimeoutExpired, ValueError):
        done = subprocess.run(
            [*(command or _COMMAND), str(gpus), str(config.placement.learner.ranks or 1)],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        if refused := json.loads(done.stdout or b"{}").get("refused"):
            raise ConfigError(refused["message"], hint=refused["hint"], field=refused["field"])
