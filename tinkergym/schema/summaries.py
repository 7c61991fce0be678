"""Jobs, runs and stored episodes in brief, as lists and charts need them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from tinkergym.schema.certificate import EpisodeFate
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult
from tinkergym.schema.events import MOST_JOBS_LISTED, MOST_NAMED_EPISODES, JobState
from tinkergym.schema.jobs.view import Cost
from tinkergym.schema.model import MOST_EPISODES, UserSettings, WireModel
from tinkergym.schema.refusals import Refusal
from tinkergym.trajectory.trajectory import MOST_TOKENS, MOST_TURNS

Tag = Annotated[str, Field(min_length=1, max_length=60)]


class JobLabels(UserSettings):
    """What its owner notes about a job, of any kind and in any state. Training does not depend on it."""

    name: str = Field("", max_length=200)
    """Replaces the name that it was submitted with; empty keeps that one."""
    tags: list[Tag] = Field([], max_length=20)
    note: str = Field("", max_length=4000)
    archived: bool = False
    """Whether lists leave it out."""


class JobSummary(WireModel):
    """A job in a list."""

    job_id: str
    name: str
    kind: str
    model: str
    environment: str = ""
    """Id of the first environment; empty in jobs that learn from a dataset."""
    state: JobState
    reason: str = ""
    error: str = ""
    """The message of the error that ended it."""
    step: int
    steps: int
    created_at: float
    """Unix seconds."""
    updated_at: float
    used_seconds: float
    used_tokens: int
    last_seq: int
    reward_mean: float | None = None
    """Of the newest step; None if there is none, or several agents are trained."""
    loss: float | None = None
    seconds_left: float | None = None
    """Until the last step, as estimated at the newest one."""
    warnings: list[str] = Field([], max_length=1000)
    """Names of the warnings among the newest events."""
    labels: JobLabels = JobLabels()

    def __repr__(self) -> str:
        # One line per job for lists; `print(one)` shows everything.
        return f"<JobSummary {self.job_id} {self.state} at step {self.step}/{self.steps}>"


JobOrder = Literal["newest", "changed", "reward", "duration", "progress", "name"]
"""The order of a list: the newest first, the latest change, the highest reward, the longest time with a
place, the most steps done in proportion, or the alphabet."""

MOST_SORTED = 2000
"""A list in another order than by age looks at so many of the newest jobs that match."""

_Text = Annotated[str, Field(max_length=200)]


class JobQuery(WireModel):
    """Which jobs a list has, and in which order. Upper and lower case are the same, except in tags."""

    search: _Text = ""
    """Words that must all occur in the name, the id, the kind, the model, the environment, the state or the
    tags."""
    name: _Text = ""
    """Part of the name."""
    environment: _Text = ""
    """Part of the id of the first environment."""
    model: _Text = ""
    """Part of the base model's name."""
    state: list[JobState] = Field([], max_length=20)
    """One of these."""
    tag: list[Tag] = Field([], max_length=20)
    """All of these."""
    archived: bool = False
    """Whether archived jobs are listed, too."""
    sort: JobOrder = "newest"
    before: _Text = ""
    """The last job's id of the page before this one, for a list by age."""
    limit: int = Field(50, ge=1, le=MOST_JOBS_LISTED)

    @model_validator(mode="after")
    def _pages_by_age(self) -> JobQuery:
        if self.before and self.sort != "newest":
            reason = f"a list sorted by {self.sort!r} has one page"
            raise Refusal("before", reason, "leave it out and raise `limit`").in_validator()
        return self


class JobSummaries(WireModel):
    """Jobs in brief."""

    jobs: list[JobSummary] = Field(max_length=MOST_JOBS_LISTED)
    has_older: bool = False
    """Whether more jobs match than are listed."""


class Series(WireModel):
    """One metric over the train steps. A long one is thinned: of each stretch its extremes are kept."""

    name: str
    steps: list[int] = Field(max_length=100_000)
    values: list[float] = Field(max_length=100_000)


class RunSeries(WireModel):
    """The metrics of a run's steps; of a repeated step the newest record counts."""

    last_seq: int
    """Number of the newest event that is included."""
    newest_step: int
    """0 before the first."""
    names: list[str] = Field(max_length=10_000)
    """All metrics that there are, at most 2,000."""
    left_out: int = 0
    """How many values have other names and are left out; the event log has them."""
    series: list[Series] = Field(max_length=10_000)
    sums: dict[str, float] = {}
    """Over all steps: of `sampled_tokens` and `trained_tokens`, and of the `sampling_seconds` and
    `learning_seconds` in which the engine and the learner were busy for the job."""


class Alarm(WireModel):
    """Something in a run that deserves a look, with where it happened."""

    name: str
    """Of the warning, such as `completions_cut`; or `failed`, `failed_episodes`, `evaluation_overlap`."""
    message: str
    """The newest one."""
    count: int
    """How many steps, or events, it concerns."""
    first_step: int
    last_step: int
    steps: list[int] = Field(max_length=50)
    """The newest steps, oldest first."""
    episodes: list[str] = Field([], max_length=MOST_NAMED_EPISODES)
    """Ids of the first episodes of the newest step that caused it; empty if it is not about some of them."""


class Alarms(WireModel):
    """The alarms of a run, the gravest first."""

    alarms: list[Alarm] = Field(max_length=1000)


class ChangedSettings(WireModel):
    """What a job's settings are apart from the defaults, nested as in its description."""

    changed: dict[str, JsonValue]


MOST_ROWS = 10_000_000
"""More than any run keeps."""


class EpisodeRows(WireModel):
    """Stored episodes in columns, newest step first: one entry per seat with a trajectory."""

    step: list[int] = Field([], max_length=MOST_ROWS)
    index: list[int] = Field([], max_length=MOST_ROWS)
    """Number in its step; with the step it names the episode."""
    agent: list[str] = Field([], max_length=MOST_ROWS)
    environment: list[str] = Field([], max_length=MOST_ROWS)
    """Its id, if the job plays several; else empty."""
    episode_return: list[float] = Field([], max_length=MOST_ROWS)
    stop_reason: list[str] = Field([], max_length=MOST_ROWS)
    turns: list[int] = Field([], max_length=MOST_ROWS)
    sampled_tokens: list[int] = Field([], max_length=MOST_ROWS)
    completed: list[bool] = Field([], max_length=MOST_ROWS)
    """Whether the return is valid."""
    trained: list[bool] = Field([], max_length=MOST_ROWS)
    """Whether the seat is one that the job trains."""
    task: list[int | None] = Field([], max_length=MOST_ROWS)
    """Index of its task; None if the environment has no list of tasks."""
    tool_errors: list[int] = Field([], max_length=MOST_ROWS)
    """Calls of tools that failed, could not be read, or were over their number."""


class EpisodePage(WireModel):
    """Some of a run's stored episodes."""

    rows: EpisodeRows
    next_before: int | None
    """The `before` of the next page; None at the end."""
    steps: int
    """Steps with stored episodes that the request allows."""
    read: int
    """How many of them this page covers."""
    group_size: int
    """Episodes per group: those whose index has the same quotient by it played the same task."""


class TokenTexts(WireModel):
    """Each token of an agent's segments as text; that of a character with several is at its last one."""

    segments: list[Annotated[list[str], Field(max_length=MOST_TOKENS)]] | None = Field(max_length=MOST_TOKENS)
    """None if the tokenizer cannot be read here; `why_not` says why."""
    why_not: str = ""


Gaps = Annotated[list[float | None], Field(max_length=MOST_TOKENS)]


class GroupMember(WireModel):
    """An episode of the same task, played from the same start."""

    index: int
    agent: str
    episode_return: float
    completed: bool
    stop_reason: str


class EpisodeView(WireModel):
    """One stored episode, with all that is needed to read it."""

    episode: EpisodeResult
    step: int
    index: int
    environment: str
    system_prompt: str
    """As far as the job knows it; the tokens have all of the prompt."""
    group_number: int
    """Of its group in the step."""
    fate: EpisodeFate | None = None
    """What became of it in training; None if its step is not recorded."""
    group: list[GroupMember] = Field(max_length=MOST_EPISODES)
    texts: dict[str, TokenTexts]
    """By agent."""
    logprob_gaps: dict[str, Annotated[list[Gaps], Field(max_length=MOST_TURNS)]] = {}
    """By agent and segment, one per sampled token: the learner's logprob at the step's first update minus the
    sampling logprob, in nats, to three digits. None for tokens that were not trained on. Agents whose step
    has no checkpoint yet are left out."""
    parents: dict[str, Annotated[list[int | None], Field(max_length=MOST_TURNS)]] = {}
    """By agent, for each turn the number of the turn that it continues, from 0; None if it begins a
    conversation. Only of agents for whom that is not always the turn before."""
    request: EpisodeRequest | None = None
    """As it was issued, with who played each seat; its lease is empty. None if that is not known any more."""
    why_no_request: str = ""


class ResultsAgainst(WireModel):
    """Returns of the trained seats in some of a run's games."""

    step: int
    """The newest of the games' steps."""
    episodes: int
    mean: float
    low: float | None
    high: float | None
    """The 95 % interval, with the games of a group as a cluster; None where there is no bound."""


class OpponentResults(WireModel):
    """How a run's trained seats fared against each kind of opponent; all past versions are one."""

    steps: int
    """Steps with stored episodes."""
    read: int
    """How many of them the figures are from, spread over the run."""
    more: bool = False
    """Whether the time was over before as many steps were read as could be: the next call reads on."""
    opponents: dict[str, Annotated[list[ResultsAgainst], Field(max_length=100)]]
    """By name: in all, then over time."""


class ModelUsage(WireModel):
    """What the jobs of a tenant on one model have used."""

    tenant_id: str
    model: str
    jobs: int
    unfinished: int
    used_seconds: float
    """Time with a place."""
    used_tokens: int
    """Sampled and trained tokens."""
    cost: Cost | None = None
    """None if the operator has set no prices."""


class UsageView(WireModel):
    """What a tenant has used; for the local owner, what each tenant's jobs have."""

    jobs: list[ModelUsage] = Field(max_length=100_000)
    images: int
    """Of the asking tenant, as the next field."""
    image_bytes: int
    most_image_bytes: int
    """The limit of the service, `limits.images_bytes`."""


class KeyView(WireModel):
    """An API key without the key itself."""

    key_id: str
    tenant_id: str
    name: str
    created_at: float
    """Unix seconds."""
    revoked_at: float | None
    read_only: bool
    requests_per_minute: int | None = None
    """Limits of what it samples; None is no limit."""
    tokens_per_minute: int | None = None


class KeyList(WireModel):
    """The keys of a tenant, oldest first; for the local owner, all keys."""

    keys: list[KeyView] = Field(max_length=100_000)
