"""A service without HTTP and learning, for tests of scripts that train one agent, with the SDK alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

from tinkergym.agent.renderer import Renderer
from tinkergym.errors import NotFoundError
from tinkergym.schema import episodes as wire
from tinkergym.schema.events import Event, EventBody, JobState, StateEvent, StepEvent
from tinkergym.schema.ids import EpisodeId, JobRef
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.parsing import parse_spec
from tinkergym.schema.sampling import SampleBatch
from tinkergym.schema.versions import __version__
from tinkergym.schema.views import HealthView
from tinkergym.testing.bundles import byte_bundle
from tinkergym.testing.samplers import ScriptedSampler
from tinkergym.trajectory.trajectory import ONLY_AGENT

_BUNDLE = byte_bundle()


class FakeConnection:
    """Stands in for a client's connection: `tinkergym.Client(connection=FakeConnection(answer))`."""

    url = "fake://service"

    def __init__(self, answer: Callable[[str], str] = lambda prompt: "ok") -> None:
        """Answer with `answer(prompt)`; the prompt is the whole conversation as the template renders it."""
        self._sampler = ScriptedSampler(Renderer.from_bundle(_BUNDLE), answer)
        self._jobs: dict[str, _Job] = {}
        self._changed = threading.Condition(threading.RLock())

    def close(self) -> None:
        """Do nothing."""

    def call(self, method: str, path: str, **options: Any) -> bytes:
        """Answer a request."""
        with self.stream(method, path, **options) as chunks:
            return b"".join(chunks)

    @contextmanager
    def stream(self, method: str, path: str, **options: Any) -> Iterator[Iterator[bytes]]:
        """Answer a request with an iterator of bytes; options as those of a connection."""
        name, _, action = path.removeprefix("/v1/jobs/").partition("/")
        job = self._jobs.get(name)
        if job and action == "events":
            yield self._events(job, int((options.get("headers") or {}).get("Last-Event-ID") or 0))
            return
        with self._changed:
            body = options.get("body") or b""
            yield iter([self._of_job(job, action, body) if job else self._answer(method, path, body)])

    def _answer(self, method: str, path: str, body: bytes) -> bytes:
        match path:
            case "/v1/health" | "/v1/renderer":
                return _json(_BUNDLE if "renderer" in path else HealthView(status="ok", version=__version__))
            case "/v1/sample":
                lines: list[bytes] = []
                batch = SampleBatch.model_validate_json(body)
                self._sampler.submit(batch.requests, lambda done: lines.extend(map(_json, done)))
                return b"\n".join(lines) + b"\n"
            case "/v1/jobs" if method == "POST":
                job_id = f"job-{len(self._jobs) + 1}"
                return _json(self._jobs.setdefault(job_id, _Job(job_id, body)).view)
        raise NotFoundError(f"the fake service does not answer {method} {path}")

    def _of_job(self, job: _Job, action: str, body: bytes) -> bytes:
        if action == "episodes/lease":
            request = wire.LeaseRequest.model_validate_json(body)
            taken = list[wire.EpisodeRequest]()
            if request.max_episodes and not request.leaving:
                self._changed.wait_for(lambda: job.open or job.view.state.final, request.wait_seconds)
                taken, job.open = job.open, []
            return _json(wire.LeaseReply(episodes=taken, job_state=job.view.state))
        if action == "episodes/submit":
            job.results += (results := wire.SubmitRequest.model_validate_json(body).results)
            if job.view.spec.played and len(job.results) == job.view.spec.played.groups.episodes:
                job.finish_step()
            self._changed.notify_all()
            return _json(wire.SubmitReply(verdicts=["accepted"] * len(results)))
        return _json(job.view)

    def _events(self, job: _Job, after: int) -> Iterator[bytes]:
        while not job.view.state.final or after < len(job.events):
            with self._changed:
                self._changed.wait_for(lambda: len(job.events) > after)  # noqa: B023 - it waits here
            for event in job.events[after:]:
                yield f"id: {event.seq}\nevent: {event.body.type}\ndata: ".encode() + _json(event) + b"\n\n"
                after = event.seq


class _Job:
    def __init__(self, job_id: str, body: bytes) -> None:
        known = {"job_id": job_id, "spec": parse_spec(from_json(body)), "state": "queued", "attempt": 1}
        self.view = JobView.model_validate({**known, "created_at": time.time(), "updated_at": time.time()})
        self.events, self.open = list[Event](), list[wire.EpisodeRequest]()
        self.say(StateEvent(state=JobState.RUNNING, attempt=1), state=JobState.RUNNING)
        self.begin_step()

    def say(self, body: EventBody, **changes: object) -> None:
        event = Event(seq=len(self.events) + 1, job_id=self.view.job_id, time=time.time(), body=body)
        self.view = self.view.model_copy(update={**changes, "last_seq": event.seq})
        self.events.append(event)

    def begin_step(self) -> None:
        spec = self.view.spec
        self.results: list[wire.EpisodeResult] = []
        if self.view.step == spec.steps:
            self.say(StateEvent(state=JobState.COMPLETED, attempt=1), state=JobState.COMPLETED)
        elif spec.played and spec.played.rollout != "server":
            self.open = [_episode(self.view, spec.played, n) for n in range(spec.played.groups.episodes)]
        else:  # Either the service plays it, or no one does.
            self.finish_step()

    def finish_step(self) -> None:
        step, seats = self.view.step + 1, [one for result in self.results for one in result.trajectories]
        returns = [one.episode_return for one in seats if one.completed]
        counts = {"episodes": len(seats), "failed_episodes": len(seats) - len(returns)}
        known = {"step": step, "steps": self.view.spec.steps, "policy_version": step, **counts}
        mean = sum(returns) / len(returns) if returns else None
        unmeasured = {name: 0.0 for name in StepEvent.model_fields if "second" in name or name == "loss"}
        event = StepEvent.model_validate({**unmeasured, **known, "reward_mean": mean})
        self.say(event, step=step, policy_version=step)
        self.begin_step()


def _episode(view: JobView, spec: PlayedSpec, number: int) -> wire.EpisodeRequest:
    step, group = view.step + 1, number // spec.groups.size
    episode_id = str(EpisodeId(JobRef(view.job_id), step, number))
    place = {"step": step, "index": number, "group": group, "seed": 1000 * step + group}
    known = {"job_id": view.job_id, "episode_id": episode_id, "lease_id": episode_id, "lease_seconds": 3600}
    seat = {"policy": view.job_id, "policy_version": view.policy_version, "model": spec.model}
    seat |= {"sampling_seed": number, "sampling": spec.sampling, "system_prompt": spec.system_prompt}
    plays = {"environment": spec.environment_at(step, group), "limits": spec.limits}
    return wire.EpisodeRequest.model_validate({**place, **known, **plays, "seats": {ONLY_AGENT: seat}})


def _json(model: BaseModel) -> bytes:
    return model.model_dump_json().encode()
