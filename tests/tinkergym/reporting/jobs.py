"""A job's view and its points, for tests of what is told of it."""

import time

from tinkergym.reporting import Note, Point
from tinkergym.schema.events import Event, JobState, StateEvent, StepEvent
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.parsing import parse_spec

SPEC = {"kind": "rl", "environment": {"id": "board/TicTacToeVs-v0"}, "steps": 5}


def job_view(job_id="job-1"):
    now = time.time()
    spec = parse_spec(SPEC)
    return JobView(
        job_id=job_id, spec=spec, state=JobState.RUNNING, created_at=now, updated_at=now, attempt=1
    )


def point(step, **values):
    return Point(step=step, time=100.0 + step, values={"reward": step / 10, **values})


def note(seq):
    """A note of either kind: a completion or an evaluation."""
    common = {"seq": seq, "step": seq, "time": 100.0 + seq}
    if seq % 2:
        row = {"step": seq, "return": 0.5, "stop_reason": "terminated", "prompt": "2+2?", "completion": "4"}
        return Note(kind="completion", text="4", row={**row, "agent": "agent_0", "episode": "e"}, **common)
    return Note(kind="evaluation", text="mean return 0.5", values={"eval/board[size=3]/mean": 0.5}, **common)


def step_event(seq, step, **settings):
    times = {"step_seconds": 1.0, "sampling_seconds": 0.5, "learning_seconds": 0.25, "seconds_left": 3.0}
    known = {"steps": 5, "policy_version": step, "loss": 0.5, "tokens_per_second": 9.0, **times}
    return Event(seq=seq, job_id="job-1", time=float(seq), body=StepEvent(step=step, **{**known, **settings}))


def end_event(seq, state=JobState.COMPLETED):
    return Event(seq=seq, job_id="job-1", time=float(seq), body=StateEvent(state=state))
