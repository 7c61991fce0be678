"""Which settings of a job can change during training, and which settings apply in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs import AnyJobSpec
from tinkergym.schema.parsing import parse_any_spec
from tinkergym.schema.updates import SettingChange, SettingsUpdate

STEERED = (
    "budget",
    "entropy_coefficient",
    "kl_coefficient",
    "learning_rate",
    "max_grad_norm",
    "updates",
    "value_learning_rate",
    "weight_decay",
)
"""The settings that `Job.update` accepts. Each update of the policy reads them again, and none affects
sampling: a step that is repeated after a kill gives the same bits."""


def changes_to(spec: AnyJobSpec, settings: Mapping[str, Any]) -> list[SettingChange]:
    """Return how these settings differ from a job's current ones.

    Raises:
        InvalidRequestError: One cannot be changed while the job trains, or the value is invalid.
    """
    known = steered_in(spec)
    for name in settings:
        if name not in known:
            raise InvalidRequestError(
                f"cannot be changed while a job of kind {spec.kind!r} trains",
                hint=f"you can change: {', '.join(known)}; for others, start a job from this one's newest "
                f"version (initial_policy)",
                field=name,
            )
    new = _with(spec, settings)
    before, after = spec.model_dump(mode="json"), new.model_dump(mode="json")
    return [
        SettingChange(name=name, old=_at(before, name), new=_at(after, name))
        for name in known
        if _at(before, name) != _at(after, name)
    ]


def steered_in(spec: AnyJobSpec) -> list[str]:
    """Return the settings that can be changed in such a job."""
    settings = spec.model_dump(mode="json")
    return [name for name in STEERED if name in settings or name in settings.get("algorithm", {})]


def settings_now(spec: AnyJobSpec, updates: Sequence[SettingsUpdate]) -> AnyJobSpec:
    """Return a job's settings with every change, including those that wait for the next step."""
    return _changed(spec, updates)


def settings_at(spec: AnyJobSpec, updates: Sequence[SettingsUpdate], step: int) -> AnyJobSpec:
    """Return the settings with which a step is trained, even if it is repeated."""
    due = [update for update in updates if update.from_step is not None and update.from_step <= step]
    return _changed(spec, due)


def _changed(spec: AnyJobSpec, updates: Sequence[SettingsUpdate]) -> AnyJobSpec:
    settings = {change.name: change.new for update in updates for change in update.changes}
    return _with(spec, settings) if settings else spec


def _with(spec: AnyJobSpec, settings: Mapping[str, Any]) -> AnyJobSpec:
    written = spec.model_dump()
    for name, value in settings.items():
        (written if name in written else written["algorithm"])[name] = value
    return parse_any_spec(written)


def _at(settings: Mapping[str, Any], name: str) -> Any:
    return settings[name] if name in settings else settings["algorithm"][name]
