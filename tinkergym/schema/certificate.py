"""The facts that a service records about a run while it goes, and the certificate made of them.

Facts are what was seen; whether that is as it should be is judged from them by
`tinkergym.reporting.certificate_checks`, here or on a colleague's machine.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from tinkergym.schema.events import CheckpointView, JobState
from tinkergym.schema.jobs import JobView
from tinkergym.schema.model import WireModel

MOST_FACTS = 10_000_000

Fate = Literal["trained", "dropped", "not_learned"]
"""Of an episode: learned from; left out of the step's update; or played for a step that was never learned."""


class AttemptFacts(WireModel):
    """A worker took the job up."""

    attempt: int
    worker_id: str
    versions: dict[str, str] = {}
    """Of Python and of the packages that compute."""
    place: dict[str, JsonValue] = {}
    """Engine, device, number format, threads."""
    model_fingerprint: str = ""
    """Of the base model's weights, as checkpoints name it."""


class PublishFacts(WireModel):
    """A version of a policy was handed to the engine, which reported the hash of what arrived."""

    agent: str = ""
    version: int
    attempt: int
    weights_sha256: str
    """Of the learner's weights; the engine reported the same one, or the job would have stopped."""


class AgreementFacts(WireModel):
    """Learner and engine were compared on tokens that a version sampled."""

    agent: str = ""
    version: int
    attempt: int
    mean: float
    """Mean |learner - sampling| logprob difference in nats, and the largest."""
    largest: float
    tokens: int
    by: Literal["episodes", "probe"]
    """Tokens of episodes, or of a few answers that were sampled for the comparison."""
    allowed: float
    """Mean difference above which the job would have stopped."""


class AdapterFacts(WireModel):
    """The first version of a policy whose adapter was no longer zero."""

    agent: str = ""
    version: int
    attempt: int
    tensors: int
    """B matrices, which are zero before training."""
    nonzero_tensors: int
    norm: float
    """Of all B matrices together."""
    learner_shift: float | None = None
    """Mean |with - without the adapter| of the learner's logprobs, in nats; None where not measured."""
    engine_shift: float | None = None
    """The engine's sampling logprobs against the learner's without the adapter: what binding changed."""
    tokens: int = 0


class EpisodeFate(WireModel):
    """What became of one episode."""

    episode_id: str
    fate: Fate
    why: str = ""
    """Of a dropped one: its stop reason, `replaced_group`, `nothing_to_compare` or `masked`."""
    retries: int = 0
    """How often it failed and was played again before."""
    issued: int = 1
    """How often it was handed to a worker; above 1 a worker was lost."""
    sampled_tokens: int = 0
    captured_tokens: int = 0
    """Of the sampled ones: those that the engine is known to have returned to this episode's worker."""
    trained_tokens: int = 0
    matched_tokens: int = 0
    """Of the trained ones: those equal, in the learner's batch, to a completion of the engine."""
    sha256: str = ""
    """Of the stored record, as JSON."""


class StepLedger(WireModel):
    """One train step's episodes, one by one."""

    step: int
    attempt: int
    episodes: list[EpisodeFate] = Field(max_length=MOST_FACTS)


class StepFacts(WireModel):
    """One train step, counted; `ledger_sha256` pins its `StepLedger`."""

    step: int
    attempt: int
    """That recorded it last."""
    episodes: int = 0
    trained: int = 0
    dropped: dict[str, int] = {}
    """By reason."""
    retried: int = 0
    issued_again: int = 0
    """Times that an episode was handed out again after its worker was lost."""
    sampled_tokens: int = 0
    captured_tokens: int = 0
    trained_tokens: int = 0
    matched_tokens: int = 0
    ledger_sha256: str = ""
    records: int = 0
    """Of written data."""
    records_sha256: str = ""
    """Of the token ids of the written data that was trained on, in order."""
    learning_rate: float | None = None


class EventsFacts(WireModel):
    """The job's log, pinned by a hash."""

    count: int
    head_sha256: str
    """Of the chain: sha256(head of the event before + sha256 of the event's JSON)."""


class CheckpointFacts(WireModel):
    """A checkpoint that is still there."""

    agent: str = ""
    view: CheckpointView


class RunFacts(WireModel):
    """Everything that the service knows of a run."""

    job: JobView
    """With the settings as they took effect."""
    service_version: str
    made_at: float
    """Unix seconds."""
    attempts: list[AttemptFacts] = Field([], max_length=MOST_FACTS)
    publishes: list[PublishFacts] = Field([], max_length=MOST_FACTS)
    agreements: list[AgreementFacts] = Field([], max_length=MOST_FACTS)
    adapters: list[AdapterFacts] = Field([], max_length=MOST_FACTS)
    steps: list[StepFacts] = Field([], max_length=MOST_FACTS)
    not_learned: list[EpisodeFate] = Field([], max_length=MOST_FACTS)
    """Episodes that are stored and belong to no recorded step."""
    checkpoints: list[CheckpointFacts] = Field([], max_length=MOST_FACTS)
    events: EventsFacts
    data: dict[str, str] = {}
    """SHA-256 of data sets by setting."""

    @property
    def state(self) -> JobState:
        """Where the job was when the facts were read."""
        return self.job.state


class Check(WireModel):
    """One statement about a run, with the figure that it rests on."""

    name: str
    verdict: Literal["holds", "fails", "not_shown"]
    """`not_shown`: the facts do not say, and `text` says why."""
    text: str


class BundledFile(WireModel):
    """A file of a bundle."""

    sha256: str
    bytes: int


class Certificate(WireModel):
    """A run's facts, what they show, and the hashes of what lies next to them in a bundle."""

    format: Literal[1] = 1
    facts: RunFacts
    checks: list[Check] = Field(max_length=1000)
    files: dict[str, BundledFile] = {}
    """Of a bundle; empty where the certificate stands alone."""
    sha256: str = ""
    """Of this document with this field empty: tells accidents, not forgery."""
