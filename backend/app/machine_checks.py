"""What the service asks of its machine before it starts: GPUs, and isolation for Python of policies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from backend.admission.model_wishes import model_shape
from backend.app.greeting import Notice
from backend.config import ServiceConfig
from backend.errors import ConfigError
from backend.planning.memory_needs import divides_heads
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.errors import TinkerGymError
from tinkergym.tools.sandbox.isolation_rule import ACCEPT_LIMITS, RISK, PythonToolSetting
from tinkergym.tools.sandbox.python_run import missing_namespaces

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


def require_divided_heads(config: ServiceConfig) -> None:
    """Check `tensor_parallel` against the attention heads of the service's models whose files are here.

    Raises:
        ConfigError: It does not divide them.
    """
    for model in config.models:
        parts = config.placement_of(model).tensor_parallel or 1
        if parts == 1 or (model in PACKAGED_MODELS and model not in config.preload):
            continue
        shape = model_shape(config, model)
        if shape is not None and not divides_heads(shape, parts):
            raise ConfigError(
                f"{parts} does not divide the {shape.heads} attention heads and {shape.key_value_heads} "
                f"key-value heads of {model!r}",
                hint="choose a divisor of both, or leave it out",
                field=f"models.{model}.placement.tensor_parallel",
            )


def isolation_notice(setting: PythonToolSetting) -> Notice | None:
    """Return the message about `PythonTool`; None if the machine was too busy to tell.

    Args:
        setting: The operator's `python_tool`.
    """
    if setting == "off":
        return _notice(setting, "off", "", "Python that policies write (PythonTool) is off")
    try:
        reason = missing_namespaces()
    except TinkerGymError:
        return None
    if not reason:
        return _notice(
            setting, "namespaces", "", "Python that policies write (PythonTool) runs in namespaces"
        )
    if setting == "limits":
        message = f"Python that policies write (PythonTool) runs with limits only, which {RISK}"
        return _notice(setting, "limits", reason, message)
    return _notice(
        setting,
        "none",
        reason,
        f"jobs with Python that policies write (PythonTool) are refused, because this machine offers no "
        f"namespaces ({reason}); `{ACCEPT_LIMITS}` runs them anyway, but {RISK}",
    )


def _notice(setting: str, isolation: str, reason: str, message: str) -> Notice:
    return Notice("python_tool", message, {"setting": setting, "isolation": isolation, "reason": reason})
