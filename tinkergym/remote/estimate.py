"""Estimate a job before it starts: from a few real steps, or from an earlier job of the same size.

Steps change while a policy learns, because completions get shorter or longer. So a running job updates the
estimate with the `seconds_left` of each step.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from tinkergym.display.progress import duration
from tinkergym.errors import JobFailedError, TinkerGymError
from tinkergym.remote.job import Job
from tinkergym.remote.job_starter import JobStarter
from tinkergym.schema.events import Event, JobState, StateEvent, StepEvent
from tinkergym.schema.jobs.dataset import DatasetSpec
from tinkergym.schema.jobs.evaluated_spec import EvaluatedSpec
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SeatSettings, Train
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.view import JobView

PROBE_STEPS = 6
"""The first step is not counted: it loads and compiles what the others use."""
_SAVES_EVERY = 2
"""Steps between two checkpoints of a probe, so that the cost of one is measured."""
_LEAST_STEPS = 3
"""The fewest steps of an earlier job to estimate from."""
_REMOVAL_SECONDS = 30.0
"""How long an interrupted probe may take to end."""
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a job will take if it continues like its first steps."""

    steps: int
    tokens: int
    """Sampled and trained tokens, those of evaluations included, as a `Budget` counts them."""
    seconds: float
    """Time with a slot on the service, from start to end."""
    source: str
    """What the estimate is based on."""

    def __str__(self) -> str:
        time = duration(self.seconds)
        return f"{self.steps} steps, about {self.tokens:,} tokens, about {time} ({self.source})"


class ProbeStarter(JobStarter):
    """Starts a probe of each job, and remembers the job itself."""

    wanted: JobSpec | None = None

    def submit(self, spec: JobSpec) -> Job:
        """Start a probe of a job."""
        self.wanted = spec
        return super().submit(probe_of(spec))


def probe_of(spec: JobSpec) -> JobSpec:
    """Return a short job whose steps are those of the long one."""
    steps = min(PROBE_STEPS, spec.steps)
    changes: dict[str, Any] = {
        "steps": steps,
        "checkpoint_every": _SAVES_EVERY,
        "budget": None,
        "name": f"probe: {spec.name}".removesuffix(": ")[:200],
    }
    if spec.evaluations:
        changes |= {"evaluate": [], "best_by": ""}
    if isinstance(spec, RLSpec):
        changes["algorithm"] = spec.algorithm.model_copy(update={"warmup_steps": 0})
        changes["agents"] = {agent: _without_warmup(seat) for agent, seat in spec.agents.items()}
    elif "warmup_steps" in type(spec).model_fields:
        changes["warmup_steps"] = 0
    return spec.model_copy(update=changes)


def _without_warmup(seat: SeatSettings) -> SeatSettings:
    if not isinstance(seat, Train) or seat.algorithm is None:
        return seat
    algorithm = seat.algorithm.model_copy(update={"warmup_steps": 0})
    return seat.model_copy(update={"algorithm": algorithm})


def estimate_from(spec: JobSpec, probe: Job, *, progress: bool | None = False) -> Estimate:
    """Wait for the end of a probe, delete it however it ended, and return the estimate.

    Args:
        spec: The job to estimate.
        probe: The short one.
        progress: As in `Job.wait`.

    Raises:
        JobFailedError: The probe failed, as the job would.
    """
    try:
        probe.wait(progress=progress, warn=False)
        events = list(probe.log())
    except KeyboardInterrupt:
        # Without the note that the job continues: this one does not.
        raise KeyboardInterrupt from None
    finally:
        _remove(probe)
    steps = [event.body for event in events if isinstance(event.body, StepEvent) and not event.body.repeated]
    if not steps:
        raise JobFailedError(
            "the probe did not finish a step", hint="start the job itself and look at its log"
        )
    overhead = max(0.0, _held_seconds(events) - sum(step.step_seconds for step in steps))
    counted = steps[1:] or steps
    return Estimate(
        steps=spec.steps,
        tokens=round(
            spec.steps * mean(step.sampled_tokens + step.trained_tokens for step in counted)
            + _evaluated(spec, counted) * sum(step.sampled_tokens for step in counted)
        ),
        seconds=overhead
        + _training_seconds(spec, steps)
        + _evaluated(spec, counted) * sum(step.sampling_seconds for step in counted),
        source=f"from {len(steps)} trial steps{_left_out(spec, counted)}",
    )


def _remove(probe: Job) -> None:
    """Delete a probe; one that was interrupted is ended first.

    This may run because the service is gone, and must not hide that.
    """
    with suppress(TinkerGymError):
        if not probe.view().state.final:
            probe.cancel()
        deadline = time.monotonic() + _REMOVAL_SECONDS
        while not probe.view().state.final and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        probe.delete()


def _training_seconds(spec: JobSpec, steps: Sequence[StepEvent]) -> float:
    """Return the time of a job's steps, from its first ones.

    The median, so that one disturbed step counts little; what only some steps do (a checkpoint, in jobs on
    datasets also a publish and a measurement) is counted separately.
    """
    seldom = {"checkpoint": _saves(spec)}
    if isinstance(spec, DatasetSpec):
        seldom |= {"publish": _saves(spec), "evaluate": _measurements(spec)}
    plain = [step.step_seconds - sum(_part(step, name) for name in seldom) for step in steps]
    per_step = median(plain[1:] or plain)
    costs = {name: [took for step in steps[1:] if (took := _part(step, name))] for name in seldom}
    some = sum(times * median(costs[name]) for name, times in seldom.items() if costs[name])
    return max(0.0, plain[0] - per_step) + spec.steps * per_step + some


def _part(step: StepEvent, name: str) -> float:
    return step.metrics.get(f"time/{name}", 0.0)


def _saves(spec: JobSpec) -> int:
    """Return how many steps end with a checkpoint, except the last."""
    return (spec.steps - 1) // spec.checkpoint_every


def _measurements(spec: DatasetSpec) -> int:
    """Return how often the loss on held-out data is measured, except in the first step."""
    if spec.eval_data is None and not spec.held_out:
        return 0
    return spec.steps // spec.eval_every + (spec.steps % spec.eval_every > 0)


def estimate_from_earlier(spec: JobSpec, earlier: Iterable[JobView]) -> Estimate | None:
    """Estimate a job from the newest earlier job of its kind and size; None if there is none."""
    for view in earlier:
        if view.step >= _LEAST_STEPS and view.used_seconds > 0 and view.spec.step_work == spec.step_work:
            return Estimate(
                steps=spec.steps,
                tokens=round(view.used_tokens / view.step * spec.steps),
                seconds=view.used_seconds / view.step * spec.steps,
                source=f"as {view.job_id} took",
            )
    return None


def _held_seconds(events: Sequence[Event]) -> float:
    """Return how long a worker had the job."""
    started = [
        event.time
        for event in events
        if isinstance(event.body, StateEvent) and event.body.state is JobState.STARTING
    ]
    return events[-1].time - started[-1] if started else 0.0


def _evaluated(spec: JobSpec, steps: Sequence[StepEvent]) -> float:
    """Return how many times the episodes of some steps all evaluations will play.

    Their episodes are taken to be as long as those of training.
    """
    episodes = sum(step.episodes for step in steps)
    if not episodes or not isinstance(spec, EvaluatedSpec):
        return 0.0
    played = sum(
        sum(1 for step in range(spec.steps + 1) if one.is_due(step, last=spec.steps)) * spec.episodes_of(one)
        for one in spec.evaluations
    )
    return played / episodes


def _left_out(spec: JobSpec, steps: Sequence[StepEvent]) -> str:
    """Return what an estimate does not cover: a job on a dataset plays nothing to measure evaluations by."""
    unknown = spec.evaluations and not any(one.episodes for one in steps)
    return ", without the evaluations" if unknown else ""
