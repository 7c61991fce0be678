"""What a job writes to its log: states, train steps, episodes, checkpoints and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from tinkergym.schema.ids import AgentMetric
from tinkergym.schema.model import WireModel
from tinkergym.trajectory.trajectory import MOST_TURNS, ONLY_AGENT, AgentId, MetricValue

MOST_JOBS_LISTED = 500
"""The most jobs that the service lists at once."""

MOST_METRICS_OF_STEP = 1000
"""The most metrics in the event of one train step."""

MOST_NAMED_EPISODES = 20
"""The most episodes that a warning names."""


class JobState(StrEnum):
    """The state of a job. The last three are final."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    WAITING_FOR_CLIENT = "waiting_for_client"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the job will never leave this state."""
        return self in {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}


class ErrorView(WireModel):
    """A `TinkerGymError` on the wire."""

    type: str
    message: str
    hint: str = ""
    field: str = ""
    code: str = ""


class StateEvent(WireModel):
    """The job entered a state."""

    type: Literal["state"] = "state"
    state: JobState
    reason: str = ""
    error: ErrorView | None = None
    attempt: int = 0


class StepEvent(WireModel):
    """One train step is done."""

    type: Literal["step"] = "step"
    step: int
    """Counts from 1. After a resume, the steps since the last checkpoint appear again with the same
    numbers, marked as `repeated`."""
    repeated: bool = False
    """Whether an earlier attempt had recorded this step already. In a deterministic job it is the same."""
    steps: int
    policy_version: int
    reward_mean: float | None = None
    """Mean return of the completed episodes; None if there were none, as for the next two. A game that ended
    before the policy's first turn trains nothing and counts in evaluations only. If several seats are
    trained, `metrics` has one per seat instead: `seat/<agent>/reward_mean`."""
    reward_std: float | None = None
    loss: float | None
    episodes: int = 0
    failed_episodes: int = 0
    stop_reasons: dict[str, int] = {}
    sampled_tokens: int = 0
    turns: int = 0
    records: int | None = None
    """Records of the dataset; None in jobs whose policy plays."""
    trained_tokens: int = 0
    """Trained tokens, each counted once: of the records, or of what the policy sampled."""
    tokens_per_second: float
    """Sampled tokens per second of the step; all tokens of the records if nothing is sampled."""
    step_seconds: float
    sampling_seconds: float
    """Time during which the engine worked."""
    learning_seconds: float
    """Time during which the learner worked."""
    seconds_left: float
    metrics: dict[str, MetricValue] = Field({}, max_length=MOST_METRICS_OF_STEP)
    """All other metrics by name: grad_norm, learning_rate, clip_fraction, zero_variance_groups, parity_max,
    env/..."""

    def reward_means(self) -> dict[str, float]:
        """Return the mean return of each trained seat, by agent; that of a single one is ""."""
        if self.reward_mean is not None:
            return {"": self.reward_mean}
        return _by_agent(self.metrics, "seat", "reward_mean")

    def losses(self) -> dict[str, float]:
        """Return the loss of each policy, by agent; that of a job's only one is ""."""
        return {"": self.loss} if self.loss is not None else self.by_policy("loss")

    def by_policy(self, name: str) -> dict[str, float]:
        """Return a metric of each policy; see `metric_by_policy`."""
        return metric_by_policy(self.metrics, name)


def metric_by_policy(metrics: Mapping[str, float], name: str) -> dict[str, float]:
    """Return a metric of each policy of a job, by its agent; that of a job's only policy is "".

    Args:
        metrics: Those of a step. The agents of a game have theirs as `policy/<agent>/<name>`.
        name: As in a job with one policy, such as `loss`.
    """
    return ({"": metrics[name]} if name in metrics else {}) | _by_agent(metrics, "policy", name)


def _by_agent(metrics: Mapping[str, float], kind: str, name: str) -> dict[str, float]:
    """Return the values of the metrics `<kind>/<agent>/<name>`, by agent."""
    named = [(AgentMetric.parse(whole), value) for whole, value in metrics.items()]
    return {one.agent: value for one, value in named if (one.kind, one.name) == (kind, name)}


class EpisodeEvent(WireModel):
    """One episode of a step as readable text."""

    type: Literal["episode"] = "episode"
    step: int
    repeated: bool = False
    """As in `StepEvent`."""
    episode_id: str
    seed: int
    agent: AgentId = ONLY_AGENT
    """The agent of this trajectory."""
    stop_reason: str
    episode_return: float
    transcript: list[tuple[str, str]] = Field(max_length=2 * MOST_TURNS + 2)
    """(role, text) in order."""


class EvaluationEvent(WireModel):
    """Held-out episodes were played with a version of the policy. They are not trained on."""

    type: Literal["evaluation"] = "evaluation"
    name: str
    """Of the evaluation, see `EvaluateEvery.name`."""
    agent: str = ""
    """The policy's agent; empty if the job trains one policy."""
    step: int
    """Train step of the version; 0 is before training."""
    policy_version: int
    episodes: int
    failed_episodes: int
    """Failed episodes are excluded from all figures."""
    sampled_tokens: int = 0
    mean: float | None
    """Mean return of the episodes that did not fail; None if there were none, as for the next two."""
    low: float | None = None
    """Bounds of the mean's 95 % interval; None for a single episode, and for returns that are all equal and
    neither -1, 0 nor 1, whose spread is unknown."""
    high: float | None = None
    stop_reasons: dict[str, int] = {}
    metrics: dict[str, MetricValue] = {}
    """The environment's metrics: means over the completed episodes of each episode's sum."""
    tasks: int | None = None
    """How many tasks there are to play; None in an environment without tasks."""
    overlap: float | None = None
    """The share of them that the policy is also trained on, by content; None if that is not known."""
    drawn: bool = False
    """Whether a split is named whose tasks could not be counted: episodes draw them by seed, so some may be
    played twice and some never."""
    best: bool = False
    """Whether the policy has no better version so far, by its first evaluation or the one named by `best_by`;
    references call it `@best`."""


class SettingChange(WireModel):
    """One changed setting."""

    name: str = Field(max_length=300)
    """As in the job: `learning_rate`; of one policy of a game: `agents.black.learning_rate`."""
    old: JsonValue
    new: JsonValue


class SettingsUpdate(WireModel):
    """Settings that were changed together."""

    changes: list[SettingChange] = Field(min_length=1, max_length=100)
    from_step: int | None = None
    """The first step that they apply to; None until the next train step begins."""


class UpdateRequest(WireModel):
    """The body of `POST /v1/jobs/{job_id}/update`."""

    settings: dict[str, JsonValue] = Field(min_length=1, max_length=100)
    """Values by name, without a section in front: `learning_rate`, `budget`, ...; those of one policy of a
    game are named `agents.black.learning_rate`."""


class UpdateEvent(SettingsUpdate):
    """The owner changed settings of the job."""

    type: Literal["update"] = "update"


class CheckpointEvent(WireModel):
    """A checkpoint was written and can be resumed from, downloaded or used to sample."""

    type: Literal["checkpoint"] = "checkpoint"
    step: int
    policy_version: int
    path: str = ""
    """Path on the service's machine, or URL in its blob store; added when the event is shown."""
    sha256: str
    """Hash of the adapter's or the model's weights file."""
    agent: str = ""
    """The agent whose policy it is; empty if the job trains one."""
    key: str = ""
    """Its key among the files of the service's jobs."""


class WarningEvent(WireModel):
    """A failure that the job survived: named, counted, with the traceback if there is one."""

    type: Literal["warning"] = "warning"
    name: str
    message: str
    count: int = 1
    step: int = 0
    episodes: list[str] = Field([], max_length=MOST_NAMED_EPISODES)
    """Ids of the first episodes that caused it, if it is about some of the step's."""
    repeated: bool = False
    """As in `StepEvent`."""


EventBody = Annotated[
    StateEvent | StepEvent | EpisodeEvent | EvaluationEvent | UpdateEvent | CheckpointEvent | WarningEvent,
    Field(discriminator="type"),
]


class Event(WireModel):
    """One line of a job's log; `seq` is 1, 2, 3, ... within the job and never reused."""

    seq: int
    job_id: str
    time: float
    body: EventBody


class CheckpointView(WireModel):
    """A stored checkpoint."""

    step: int
    policy_version: int
    path: str = ""
    """Path on the service's machine, or URL in its blob store; added when the checkpoint is shown."""
    sha256: str
    files: dict[str, int]
    """Name to size in bytes."""
    agent: str = ""
    """The policy's agent; empty if the job trains one policy in an environment with one agent."""
    key: str = ""
    """Its key among the files of the service's jobs; empty in records of earlier versions."""


MOST_UPDATES = 1000
"""The most changes of one job: each view of it shows all of them."""
