"""Which settings of a job can change during training, and which settings apply in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.events import SettingChange, SettingsUpdate
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.parsing import parse_spec

_AGENTS = "agents"

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
sampling: a step that is repeated after a kill gives the same bits. Those of the algorithm also exist for each
policy of a game: `agents.black.learning_rate`."""


def changes_to(spec: JobSpec, settings: Mapping[str, Any]) -> list[SettingChange]:
    """Return how these settings differ from a job's current ones.

    Raises:
        InvalidRequestError: One cannot be changed while the job trains, or the value is invalid.
    """
    known = [*steered_in(spec), *steered_by_agent(spec)]
    for name in settings:
        _refuse_overridden(spec, name)
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
        # A policy follows the job's algorithm until one of its own settings is changed.
        for name in [name for name in known if name in settings or not _agent_and_setting(name)[0]]
        if _at(before, name) != _at(after, name)
    ]


def steered_in(spec: JobSpec) -> list[str]:
    """Return the settings that can be changed in such a job."""
    settings = spec.model_dump(mode="json")
    return [name for name in STEERED if name in settings or name in settings.get("algorithm", {})]


def steered_by_agent(spec: JobSpec) -> list[str]:
    """Return the settings that can be changed for a single policy of a job with several."""
    if not isinstance(spec, RLSpec) or not spec.agents:
        return []
    return [
        _of_agent(agent, name)
        for agent in spec.trained_agents
        for name in STEERED
        if hasattr(spec.for_agent(agent).algorithm, name)
    ]


def _refuse_overridden(spec: JobSpec, name: str) -> None:
    """Refuse to change a setting of the job's algorithm that a policy with its own would not follow."""
    if not isinstance(spec, RLSpec) or name in ("budget", "updates") or name not in STEERED:
        return
    own = [agent for agent in spec.trained_agents if agent and _has_algorithm(spec, agent)]
    if own:
        raise InvalidRequestError(
            f"cannot be changed for the whole job, because Train(algorithm=...) sets it for "
            f"{' and '.join(map(repr, own))}",
            hint=f"change it for each policy: "
            f"{', '.join(_of_agent(agent, name) for agent in spec.trained_agents)}",
            field=name,
        )


def _has_algorithm(spec: RLSpec, agent: str) -> bool:
    seat = spec.agents[agent]
    return isinstance(seat, Train) and seat.algorithm is not None


def settings_now(spec: JobSpec, updates: Sequence[SettingsUpdate]) -> JobSpec:
    """Return a job's settings with every change, including those that wait for the next step."""
    return _changed(spec, updates)


def settings_before(spec: JobSpec, updates: Sequence[SettingsUpdate]) -> JobSpec:
    """Return the settings with which a job began, from its current ones.

    Raises:
        InvalidRequestError: The updates are not of this job.
    """
    # The first change of a setting has its first value.
    old = {change.name: change.old for update in reversed(updates) for change in reversed(update.changes)}
    return _with(spec, old) if old else spec


def settings_at(spec: JobSpec, updates: Sequence[SettingsUpdate], step: int) -> JobSpec:
    """Return the settings with which a step is trained, even if it is repeated."""
    due = [update for update in updates if update.from_step is not None and update.from_step <= step]
    return _changed(spec, due)


def _changed(spec: JobSpec, updates: Sequence[SettingsUpdate]) -> JobSpec:
    settings = {change.name: change.new for update in updates for change in update.changes}
    return _with(spec, settings) if settings else spec


def _with(spec: JobSpec, settings: Mapping[str, Any]) -> JobSpec:
    written = spec.model_dump()
    # Those of the job first: a policy without an algorithm starts from the job's.
    for name, value in sorted(settings.items(), key=lambda one: bool(_agent_and_setting(one[0])[0])):
        agent, own = _agent_and_setting(name)
        if agent:
            seat = written["agents"][agent]
            # From now on the policy has an algorithm of its own.
            seat["algorithm"] = seat["algorithm"] or dict(written["algorithm"])
            seat["algorithm"][own] = value
        else:
            (written if name in written else written["algorithm"])[name] = value
    return parse_spec(written)


def _at(settings: Mapping[str, Any], name: str) -> Any:
    agent, own = _agent_and_setting(name)
    if agent:
        return (settings["agents"][agent]["algorithm"] or settings["algorithm"])[own]
    return settings[name] if name in settings else settings["algorithm"][name]


def _of_agent(agent: str, name: str) -> str:
    return f"{_AGENTS}.{agent}.{name}"


def _agent_and_setting(name: str) -> tuple[str, str]:
    """Split the name of a policy's setting; the agent is empty for a setting of the job."""
    if not name.startswith(f"{_AGENTS}."):
        return "", name
    # The agent's id may contain dots, a setting's name cannot.
    agent, _, own = name.removeprefix(f"{_AGENTS}.").rpartition(".")
    return agent, own
