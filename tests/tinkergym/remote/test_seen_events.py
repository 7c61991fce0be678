"""Tests of `tinkergym.remote.seen_events`."""

import pytest

from tinkergym.remote.seen_events import SeenEvents
from tinkergym.schema.events import Event, JobState, StateEvent, WarningEvent
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.view import JobView


@pytest.fixture
def view():
    spec = RLSpec(environment=EnvironmentRef(id="local/Mine-v0"), steps=2, rollout="client")
    return JobView(job_id="job-1", spec=spec, state=JobState.RUNNING, created_at=0, updated_at=0)


def event(body, *, seq=1):
    return Event(seq=seq, job_id="job-1", time=float(seq), body=body)


def test_tells_each_kind_of_warning_once(view):
    seen = SeenEvents()
    for seq, step in enumerate([3, 4], start=1):
        view = seen.note(
            event(WarningEvent(name="completions_cut", message="long", step=step), seq=seq), view
        )
    (told,) = seen.news(view, played_here=True)
    assert "step 3" in told
    assert not list(seen.news(view, played_here=True))


def test_tells_each_pause_and_when_no_one_plays(view):
    seen, news = SeenEvents(), []
    states = [JobState.PAUSED, JobState.RUNNING, JobState.PAUSED, JobState.WAITING_FOR_CLIENT]
    for seq, state in enumerate(states, start=1):
        view = seen.note(event(StateEvent(state=state), seq=seq), view)
        news.append(len(list(seen.news(view, played_here=False))))
    assert news == [1, 0, 1, 1]


def test_ignores_states_older_than_the_view(view):
    seen = SeenEvents()
    view = view.model_copy(update={"updated_at": 5.0})
    assert seen.note(event(StateEvent(state=JobState.PAUSED)), view).state is JobState.RUNNING
    assert not seen.complete
    assert seen.note(event(StateEvent(state=JobState.COMPLETED), seq=6), view).state is JobState.COMPLETED
    assert seen.complete
