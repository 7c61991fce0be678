"""One board of a job, with what workers must know of the job: pure bookkeeping under its boards' lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from backend.episodes.episode_board import EpisodeBoard
from backend.learner.sequences import TokenLimits
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.errors import TinkerGymError, TooManyFailedEpisodesError
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult
from tinkergym.schema.events import JobState
from tinkergym.schema.ids import JobRef

Save = Callable[[int, Sequence[EpisodeResult]], object]
"""Stores a step's results; returns when they are durable."""

MOST_WORKER_DEATHS = 5
"""Deaths in one step after which the job fails, instead of killing workers forever."""

_LEFT_REMEMBERED = 1000
"""The number of remembered workers that left. A call waits for seconds, during which fewer leave."""


@dataclass(slots=True, kw_only=True)
class JobBoard:
    """The episodes of a job's steps, or those of its evaluations.

    Once isolated it stays so: since then a crash of its environment costs only the episode that was in it.
    """

    name: str
    """The text of a `JobRef`: the job, or another of its boards."""
    board: EpisodeBoard
    save: Save
    for_server_workers: bool
    """Whether workers that serve any job may have these episodes."""
    limits: TokenLimits
    """Limits of the job's base model."""
    other_limits: Mapping[str, TokenLimits] = field(default_factory=dict)
    """Limits of further base models that play some seats, by name."""
    tenant: str = ""
    environment: str = ""
    """Id of the environment of its episodes."""
    background: bool = False
    """Whether workers get these episodes only after the jobs' own."""
    job_id: str = field(init=False)
    """The job, whichever of its boards this is."""
    owner: str = field(init=False)
    """Workers that serve any job only serve one owner: the tenant, or an isolated job itself."""
    state: JobState = JobState.RUNNING
    last_contact: float = 0.0
    """When a worker of this job was last heard from, on the boards' clock."""
    isolated: bool = False
    """Whether a worker died in this environment for this tenant: since then each environment has its own
    process."""
    crash_untold: bool = False
    """Whether the job must still be told."""
    worker_deaths: int = 0
    """Environment workers that died in a call of this job's environment in this step."""
    error: TinkerGymError | None = None
    """Why the rollout cannot continue; raised where the job waits for it."""
    left: BoundedDict[str, None] = field(default_factory=lambda: BoundedDict(_LEFT_REMEMBERED))
    """Workers that announced their end, in order."""
    recorded_step: int = -1
    """Newest step recorded in the store: results are acknowledged once it knows the version that sampled
    them."""

    def __post_init__(self) -> None:
        self.job_id, self.owner = JobRef.parse(self.name).job_id, self.tenant

    def isolate(self) -> None:
        """From now on a crash of this job's environment only costs the episode that was in it."""
        self.isolated = True
        if self.board.lockstep:
            # Its episodes wait for each other, and there is no room for that many processes, so the job gets
            # its own workers instead.
            self.owner = self.name

    def note_crash(self) -> None:
        """Record that a worker died in this job's environment; the job fails if too many do in one step."""
        self.crash_untold = self.crash_untold or not self.isolated
        self.isolate()
        self.worker_deaths += 1
        if self.worker_deaths >= MOST_WORKER_DEATHS:
            self.error = TooManyFailedEpisodesError(
                f"{self.worker_deaths} environment workers died while they played step {self.board.step}",
                hint="the environment seems to crash or fill the memory of its process; use "
                "rollout='client' to play it in your own process and see how",
            )

    def lease(self, worker_id: str, most: int, now: float) -> list[EpisodeRequest]:
        """Lease up to `most` open episodes."""
        some = self.board.lease(worker_id, most, now)
        if self.isolated and not self.board.lockstep:
            some = [episode.model_copy(update={"executor": "process"}) for episode in some]
        return some

    def limits_of_seats(self, result: EpisodeResult) -> dict[str, TokenLimits]:
        """Return the limits of the seats of an episode that another base model than the job's own played."""
        models = self.board.models_of(result).items() if self.other_limits else ()
        return {agent: self.other_limits[model] for agent, model in models if model in self.other_limits}
