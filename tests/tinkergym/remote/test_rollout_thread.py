"""The worker of a script knows whether it plays."""

import threading

import pytest

from tinkergym.agent.renderer import Renderer
from tinkergym.errors import ConflictError, TinkerGymError
from tinkergym.remote.rollout_thread import RolloutThread
from tinkergym.schema.episodes import LeaseReply
from tinkergym.schema.events import JobState
from tinkergym.testing import ScriptedSampler, byte_bundle


class Service:
    """Hands out nothing, until the job has ended."""

    def __init__(self, error=None, state=JobState.COMPLETED):
        self.state = state
        self.error, self.ends = error, threading.Event()
        self.asked = threading.Event()

    def lease(self, request):
        self.asked.set()
        if request.leaving:
            return LeaseReply(episodes=[], job_state=JobState.RUNNING)
        self.ends.wait(60)
        if self.error is not None:
            raise self.error
        return LeaseReply(episodes=[], job_state=self.state)

    def sampler(self):
        return ScriptedSampler(Renderer.from_bundle(byte_bundle()), lambda prompt: "yes")


def ended(thread):
    for playing in threading.enumerate():
        if playing.name == "tinkergym-rollout":
            playing.join(60)
    return thread


def started(service):
    thread = RolloutThread(service, lambda reference: None, job_id="job-1", max_episodes=1)
    thread.start()
    assert service.asked.wait(60)
    return thread


def test_does_not_ask_to_play_on_after_the_job_ended():
    service = Service()
    thread = started(service)
    assert thread.is_playing
    service.ends.set()
    assert ended(thread).is_playing


@pytest.mark.parametrize("broken", [True, False])
def test_plays_no_more_after_breaking_or_stopping(broken):
    service = Service(ConflictError("no such job") if broken else None, state=JobState.RUNNING)
    thread = started(service)
    service.ends.set()
    if broken:
        ended(thread)
    else:
        thread.stop()
    assert not thread.is_playing


def test_tells_how_to_play_on_with_the_jobs_id():
    service = Service(ZeroDivisionError("in the transport"))
    thread = started(service)
    service.ends.set()
    ended(thread)
    with pytest.raises(TinkerGymError) as error:
        thread.raise_if_broken()
    assert "Client.attach('job-1', env=...)" in error.value.hint
