"""What must hold for the service to work, as its operator reads it: the doctor of `tinkergym status`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from backend.config import ServiceConfig
from backend.gateway.shown_views import disk_trouble
from backend.store.service_parts import pool_part, without_model
from tinkergym.schema.events import ErrorView
from tinkergym.schema.operation import CheckView

_ADVICE = {
    "scheduler": "no job starts until it is back; see the log `scheduler`",
    "disk": "free some space: nothing can be recorded",
    "cluster": "the Ray cluster of ray.address does not answer; running jobs go on",
    "pool": "it is started again, and its jobs continue from their checkpoints; see the log `scheduler`",
    "engines": "the model is sampled with fewer engines meanwhile; see the log `scheduler`",
}


def service_checks(
    config: ServiceConfig, missing: Mapping[str, float], refusals: Mapping[str, ErrorView], now: float
) -> list[CheckView]:
    """Return all checks, those that failed first. Without the database there are none: the request fails.

    Args:
        config: The service's settings.
        missing: Parts that are missing, with since when.
        refusals: Why models' workers do not start.
        now: Unix seconds.
    """
    checks = [_disk(config)]
    for name, since in missing.items():
        if name != "disk":
            advice = _ADVICE.get(without_model(name), "see the log `scheduler`")
            checks.append(
                CheckView(name=name, ok=False, message=f"missing for {now - since:.0f} s: {advice}")
            )
    for model, error in refusals.items():
        told = f"it does not start: {error.message}" + (f"; {error.hint}" if error.hint else "")
        checks.append(CheckView(name=f"model:{model}", ok=False, message=told))
    wanted = ["scheduler", *map(pool_part, config.preload)]
    checks += [CheckView(name=name, ok=True, message="it is there") for name in wanted if name not in missing]
    return sorted(checks, key=lambda one: one.ok)


def _disk(config: ServiceConfig) -> CheckView:
    if trouble := disk_trouble(config):
        return CheckView(name="disk", ok=False, message=f"{config.data_dir} {trouble}; {_ADVICE['disk']}")
    free = shutil.disk_usage(config.data_dir).free
    told = f"{free / 1e9:.1f} GB free in {config.data_dir}"
    if free < config.min_free_bytes:
        told += f", less than min_free_bytes, {config.min_free_bytes / 1e9:.1f} GB: free some space"
        return CheckView(name="disk", ok=False, message=told)
    return CheckView(name="disk", ok=True, message=told)
