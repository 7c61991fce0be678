"""A job as its owner sees it: follow it, wait for it, cancel it, get its policy and its checkpoints."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Self

from tinkergym.display.html import card
from tinkergym.display.pandas_tables import completion_rows, frame, with_metrics
from tinkergym.errors import (
    JobCancelledError,
    JobFailedError,
    TinkerGymError,
    from_wire,
)
from tinkergym.remote.api import Api
from tinkergym.remote.event_stream import follow
from tinkergym.remote.job_policies import JobPolicies
from tinkergym.remote.overview import how_to_play_on
from tinkergym.remote.rollout_thread import RolloutThread
from tinkergym.remote.seen_events import SeenEvents, stored_pictures
from tinkergym.remote.watched_job import watched
from tinkergym.reporting.callbacks import Callback
from tinkergym.reporting.reporter import Reporter
from tinkergym.reporting.trackers import callbacks_of
from tinkergym.schema.events import (
    EpisodeEvent,
    Event,
    JobState,
    StateEvent,
    StepEvent,
)
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.parsing import parse, update_request
from tinkergym.schema.summaries import JobLabels

RESULT_PATIENCE_SECONDS = 300.0
"""How long `events` and `wait` try to reconnect to the service."""


class Job(JobPolicies):
    """A training request that the service works on. It continues without this object."""

    def __init__(self, api: Api, view: JobView, *, rollout: RolloutThread | None = None) -> None:
        """Wrap a job. Users get one from `Client.train`, `Client.attach` or `Client.job`.

        Args:
            api: The service's API.
            view: The last known view of the job.
            rollout: The thread that plays its episodes, if they are played in this process.
        """
        super().__init__(api, view)
        self._rollout = rollout
        self._reporters: list[Reporter] = []
        self._seen = SeenEvents()

    def __repr__(self) -> str:
        return f"<Job {self.id} {self._view.state} at step {self._view.step}/{self.spec.steps}>"

    def _repr_html_(self) -> str:
        """Show the job in a notebook, with its curves so far."""
        view = self._view
        rows = {
            "state": f"{view.state}{f': {view.reason}' if view.reason else ''}",
            "step": f"{view.step} of {self.spec.steps}",
            "model": self.spec.model,
        }
        if self.spec.played:
            rows["environment"] = self.spec.played.played_in
        if view.error is not None:
            rows["error"] = f"{view.error.message} {view.error.hint}".strip()
        if changes := self._seen.changes:
            rows["changed"] = changes
        drawn = self._seen.pictures("mean reward" if self.spec.played else "loss")
        return card(self.id, rows, picture=drawn or stored_pictures(self._api, self.id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def events(self, *, after: int = 0, replay: bool = True) -> Iterator[Event]:
        """Yield all events, each once, from the beginning or after number `after`.

        Ends after the event with the final state. Does not raise if the job failed; `wait` does. A lost
        connection is resumed where it broke.

        Ctrl-C ends the iteration, not the job; a note below the traceback says how to attach again.

        Args:
            after: The `seq` of the last event already seen.
            replay: False skips events before this call, except the final state of an ended job.

        Raises:
            ServiceUnreachableError: The service did not respond for five minutes; the job itself may
                continue.
            TinkerGymError: Playing the episodes in this process failed.
        """
        events = follow(
            self._api.connection,
            self.id,
            after=after,
            patience_seconds=RESULT_PATIENCE_SECONDS,
            check=self._check_rollout,
        )
        before = -math.inf if replay else self.view().updated_at
        while True:
            try:
                event = next(events, None)
            except KeyboardInterrupt:
                # The traceback shows the waiting line, not the HTTP library's below it.
                raise self._interrupted() from None
            if event is None:
                return
            self._view = self._seen.note(event, self._view)
            is_final = isinstance(event.body, StateEvent) and event.body.state.final
            if is_final:
                self.close()
            if is_final or event.time > before:
                yield event

    def log(self) -> Iterator[Event]:
        """Yield the events so far, each once. `events` continues until the job ends."""
        last = self.view().last_seq
        for event in self.events() if last else ():
            yield event
            if event.seq >= last:
                return

    def steps(self) -> list[StepEvent]:
        """Return the finished train steps, each once."""
        last = self.view().step
        found: dict[int, StepEvent] = {}
        for event in self.events() if last else ():
            if isinstance(event.body, StepEvent):
                found[event.body.step] = event.body
                # For a running job the next events may take long.
                if event.body.step >= last and not self._view.state.final:
                    break
        return [found[number] for number in sorted(found)]

    def completions(self, step: int | None = None) -> list[dict[str, Any]]:
        """Return a table of a few completions: each turn of the episodes that the log shows, a row each.

        The log has the best and the worst completed episode of each step. Rows have step, episode_id, agent,
        seed, turn, prompt (what the environment showed), completion, return and stop_reason of the episode;
        `pandas.DataFrame(job.completions())` shows them.

        Args:
            step: Only this step; None returns all.
        """
        shown = [event.body for event in self.log() if isinstance(event.body, EpisodeEvent)]
        return [row for episode in shown if step in (None, episode.step) for row in completion_rows(episode)]

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each finished train step; metrics are columns.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        left_out = {"type", "metrics", "stop_reasons", "repeated"}
        return frame(with_metrics(step.model_dump(exclude=left_out), step.metrics) for step in self.steps())

    def wait(self, *, progress: bool | None = None, warn: bool = True) -> JobView:
        """Wait until the job ends and return its final view.

        Ctrl-C ends the waiting, not the job; a note below the traceback says how to attach again.

        Args:
            progress: Show progress, on stderr or in the notebook; None does so only on a terminal and in a
                notebook.
            warn: Turn the first of each kind of the job's warnings into a Python warning, including earlier
                ones, and say what to do if the job waits for a client or is paused.

        Raises:
            JobCancelledError: It was cancelled.
            JobFailedError: It failed. The message has the service's reason and what to do.
        """
        view = self.view()
        if not (view.state.final and self._seen.complete):
            try:
                with watched(self, progress, warnings=not warn) as show:
                    for event in self.events():
                        show(event)
                        for news in self._seen.news(self._view, played_here=self._plays_here) if warn else ():
                            warnings.warn(news, stacklevel=2)
            except KeyboardInterrupt:
                raise self._interrupted() from None
            view = self._final_view()
        for news in self._seen.news(self._view, played_here=self._plays_here) if warn else ():
            warnings.warn(news, stacklevel=2)
        self.close()
        return raise_for(view)

    def report_to(self, *trackers: str | Callback) -> Self:
        """Report every train step to trackers, in the background; see `docs/guides/tracking.md`.

        A tracker that already has steps of this job only gets the others. If this process ends early, the
        next `report_to` of the job continues.

        Args:
            trackers: "csv", "jsonl", "mlflow", "tensorboard", "trackio", "wandb", or your own callbacks.

        Raises:
            InvalidRequestError: There is no such tracker.
            MissingExtraError: A tracker's package is not installed.
        """
        callbacks = callbacks_of(trackers)
        if callbacks:
            events = partial(follow, self._api.connection, self.id, patience_seconds=RESULT_PATIENCE_SECONDS)
            self._reporters.append(Reporter(self._view, lambda check: events(check=check), callbacks))
        return self

    def cancel(self) -> JobView:
        """Ask the job to end. Returns at once; `wait` and `events` show when it has ended."""
        self._view = self._api.cancel(self.id)
        return self._view

    def pause(self) -> JobView:
        """Pause the job: it finishes a step that is learning, saves a checkpoint and gives up its slot.

        Returns at once; `wait` and `events` show when it has paused. It stays `paused` until `resume`, across
        restarts, and then continues as if it had not been paused. Unfinished episodes are played again.

        Raises:
            ConflictError: It has ended.
        """
        self._view = self._api.pause(self.id)
        return self._view

    def resume(self) -> JobView:
        """Queue a paused job again. A job that is not paused is unchanged.

        Raises:
            ConflictError: It has ended, or its budget is used up: raise it with `update` first.
        """
        self._view = self._api.resume(self.id)
        return self._view

    def update(self, **settings: Any) -> JobView:
        """Change settings while the job trains: from the next train step on, the budget at once.

        The job's log has the first step they apply to. A job that is killed and resumed repeats its steps
        with the settings they had.

        Args:
            settings: `budget`, `learning_rate`, `value_learning_rate`, `entropy_coefficient`,
                `kl_coefficient`, `max_grad_norm`, `weight_decay`, `updates`, if this kind of job has them. A
                learning rate is the schedule's peak; the schedule itself continues. For one policy of a
                game: `agents={"black": {"learning_rate": 1e-4}}`.

        Raises:
            InvalidRequestError: A setting cannot be changed while a job trains, or its value is invalid.
            ConflictError: It has ended.
        """
        self._view = self._api.update(self.id, update_request(settings))
        return self._view

    def label(
        self,
        *,
        name: str | None = None,
        tags: Sequence[str] | None = None,
        note: str | None = None,
        archived: bool | None = None,
    ) -> JobLabels:
        """Change what lists show of the job, in any state; return all labels. None keeps a label.

        Args:
            name: Replaces the name that it was submitted with.
            tags: All tags; `client.jobs(tag=...)` finds them.
            note: Any text.
            archived: Whether lists leave the job out.

        Raises:
            InvalidRequestError: A text is too long, or there are too many tags.
        """
        given = {"name": name, "tags": tags, "note": note, "archived": archived}
        chosen = {key: value for key, value in given.items() if value is not None}
        before = self._api.labels(self.id)
        if not chosen:
            return before
        return self._api.set_labels(self.id, parse(JobLabels, before.model_dump() | chosen))

    def delete(self) -> int:
        """Delete an ended job with its events, its checkpoints and its policy.

        Returns:
            Bytes freed on the service's disk.

        Raises:
            ConflictError: It has not ended, or an unfinished job or a name uses its policy.
            NotFoundError: It was deleted before.
        """
        return self._api.delete(self.id).bytes

    def close(self) -> None:
        """Stop playing episodes and reporting in this process.

        The job continues, and waits for a client if it needs one. If the job has ended, trackers first
        receive everything.
        """
        if self._rollout is not None:
            self._rollout.stop()
        for reporter in self._reporters:
            reporter.close(ended=self._view.state.final)

    def _interrupted(self) -> KeyboardInterrupt:
        goes_on = "goes on" if self._rollout is None else "waits for a client to play its episodes"
        if self._view.state is JobState.PAUSED:
            goes_on = f"stays paused until `tinkergym jobs resume {self.id}`"
        seen = f"`tinkergym jobs attach {self.id}` shows it"
        if self._rollout is not None:
            seen = f"To play on: {how_to_play_on(self._view)}"
        interrupt = KeyboardInterrupt()
        interrupt.add_note(f"The job {goes_on}. {seen}; `tinkergym jobs cancel {self.id}` ends it.")
        return interrupt

    @property
    def _plays_here(self) -> bool:
        return self._rollout is not None and self._rollout.is_playing

    def _check_rollout(self) -> None:
        if self._rollout is not None:
            self._rollout.raise_if_broken()

    def _final_view(self) -> JobView:
        """Fetch the state that an event announced."""
        view = self.view()
        while not view.state.final:
            time.sleep(0.05)
            view = self.view()
        return view


def raise_for(view: JobView) -> JobView:
    """Return a job that completed; raise an error for any other end.

    Raises:
        JobCancelledError: It was cancelled.
        JobFailedError: It failed.
    """
    if view.state is JobState.CANCELLED:
        raise JobCancelledError(
            f"{view.job_id} was cancelled at step {view.step} of {view.spec.steps}",
            hint="its checkpoints are still stored",
        )
    if view.state is JobState.FAILED:
        cause: TinkerGymError | None = from_wire(view.error.model_dump()) if view.error else None
        raise JobFailedError(
            f"{view.job_id} failed at step {view.step} of {view.spec.steps}: "
            f"{cause.message if cause else view.reason or 'the service did not give a reason'}",
            hint=cause.hint if cause else "",
            field=cause.field if cause else "",
        ) from cause
    return view
