import queue
import threading

from tinkergym.remote.script_episodes import ScriptEpisodes
from tinkergym.schema.episodes import EpisodeRequest, LeaseReply, SubmitReply
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits

EPISODE = EpisodeRequest.model_construct(
    episode_id="job-1:0:0", lease_id="lease-1", environment=EnvironmentRef(id="e"), limits=Limits()
)


class Slow:
    """Takes a result only once its lease was renewed after the result had come."""

    def __init__(self):
        self.handed_in, self.renewed = threading.Event(), queue.SimpleQueue()

    def lease(self, request):
        if self.handed_in.is_set() and not request.leaving:
            self.renewed.put(request.renew)
        episodes = [EPISODE] if request.max_episodes else []
        return LeaseReply.model_construct(episodes=episodes, job_state=JobState.RUNNING)

    def submit(self, request):
        self.handed_in.set()
        self.renewed.get(timeout=120)  # may have been sent before the result was
        assert self.renewed.get(timeout=120) == [EPISODE.lease_id]
        return SubmitReply(verdicts=["accepted"])


def test_renews_lease_until_result_is_durable():
    service = Slow()
    episodes = ScriptEpisodes(service, heartbeat_seconds=0.01)
    try:
        assert episodes.submit(episodes.next(), [])
        assert [] in (service.renewed.get(timeout=120) for _ in range(1000))
    finally:
        episodes.close()
