"""What the events of a job said so far: curves, changed settings, and warnings, each shown once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from tinkergym.display.html import curve
from tinkergym.display.progress import update_words
from tinkergym.errors import TinkerGymError
from tinkergym.remote.api import Api
from tinkergym.remote.overview import how_to_play_on
from tinkergym.schema.events import (
    Event,
    JobState,
    StateEvent,
    StepEvent,
    UpdateEvent,
    WarningEvent,
)
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.steering import settings_now


class SeenEvents:
    """What the events read so far said about a job. A kind of warning is news once, a pause each time."""

    def __init__(self) -> None:
        self.complete = False
        """Whether the last one was seen."""
        self._curves: dict[str, dict[int, float]] = {}
        """Mean reward by step, or the loss of jobs without one; of a game, one for each trained seat."""
        self._updates: dict[int, str] = {}
        """Changed settings by step."""
        self._warnings: dict[str, str] = {}
        """The first warning of each kind."""
        self._shown: set[str] = set()
        """The kinds of warnings that were news before."""

    @property
    def changes(self) -> str:
        """The changed settings, for people."""
        return "; ".join(f"from step {step}: {words}" for step, words in self._updates.items())

    def note(self, event: Event, view: JobView) -> JobView:
        """Note an event, and return the job's view after it."""
        body, view = event.body, _after(view, event)
        if isinstance(body, StateEvent):
            self.complete |= body.state.final
        if isinstance(body, StepEvent):
            values = body.reward_means() if view.spec.played else body.losses()
            for agent, value in values.items():
                # By step: one that is repeated after a kill replaces its earlier value.
                self._curves.setdefault(agent, {})[body.step] = value
        if isinstance(body, UpdateEvent) and body.from_step is not None:
            known = self._updates.get(body.from_step)
            words = update_words(body)
            self._updates[body.from_step] = words if known in (None, words) else f"{known}, {words}"
        if isinstance(body, WarningEvent):
            times = f", {body.count} times" if body.count > 1 else ""
            text = f"{view.job_id} at step {body.step}: {body.name}{times}: {body.message}"
            self._warnings.setdefault(body.name, text)
        return view

    def news(self, view: JobView, *, played_here: bool) -> Iterator[str]:
        """Yield what was not yielded before: warnings, and that the job is paused or waits for a client."""
        for name, text in self._warnings.items():
            if name not in self._shown:
                self._shown.add(name)
                yield text
        # Check the view, not the event: another client may be playing by now.
        state = view.state
        if state is JobState.PAUSED and state not in self._shown:
            self._shown.add(state)
            yield f"{view.job_id} is paused: {view.reason}"
        elif state is not JobState.PAUSED:
            self._shown.discard(JobState.PAUSED)  # The next pause is shown again.
        if state is JobState.WAITING_FOR_CLIENT and not played_here and state not in self._shown:
            self._shown.add(state)
            continued = how_to_play_on(view)
            yield f"{view.job_id} waits for a client to play its episodes; continue with: {continued}"

    def pictures(self, name: str) -> str:
        """Draw the curves of what the steps measure, one for each seat."""
        return "".join(self._picture(name, agent) for agent in self._curves)

    def _picture(self, name: str, agent: str) -> str:
        values = self._curves[agent]
        steps = sorted(values)
        marks = {steps.index(step): words for step, words in self._updates.items() if step in values}
        whose = f"{name} of {agent}" if agent else name
        return curve([values[step] for step in steps], whose, marks)


def stored_pictures(api: Api, job_id: str) -> str:
    """Draw the curves of a job whose events were not read here."""
    with suppress(TinkerGymError):  # A notebook shows the rest without a service.
        found = [one for one in api.series(job_id).series if one.values]
        means = [one for one in found if one.name.endswith("reward_mean")]
        return "".join(curve(one.values, one.name) for one in means or found if means or one.name == "loss")
    return ""


def _after(view: JobView, event: Event) -> JobView:
    """Return a job's view after an event. In a replay, an event older than the view changes nothing.

    The service dates a job by its last event, so both times come from one clock.
    """
    body = event.body
    if event.time < view.updated_at:
        return view
    changes: dict[str, object]
    if isinstance(body, StateEvent):
        changes = {"state": body.state, "reason": body.reason, "error": body.error, "attempt": body.attempt}
    elif isinstance(body, StepEvent):
        changes = {"step": body.step, "policy_version": body.policy_version}
    elif isinstance(body, UpdateEvent):
        changes = {"spec": settings_now(view.spec, [body])}
    else:
        return view
    return view.model_copy(update={**changes, "updated_at": event.time})
