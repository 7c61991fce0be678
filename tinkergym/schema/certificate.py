"""The facts that a service records during a run, and the certificate made from them.

Facts are observations. `tinkergym.certificates` decides whether they are as they should be,
here or on another machine.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import FailFast, Field, JsonValue

from tinkergym.schema.events import CheckpointView, JobState
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.model import WireModel

MOST_FACTS = 10_000_000

KEY_PATTERN = r"^[0-9a-f]{64}$"
"""An operator's public key in hexadecimal digits."""

EMPTY_CHAIN = hashlib.sha256(b"").hexdigest()
"""The head of a chain without entries."""

SIGNED_PREFIX = b"tinkergym run facts 1\n"
"""Keeps a signature of facts from being one of anything else."""

Fate = Literal["trained", "dropped", "not_learned"]
"""Outcome of an episode: trained on; excluded from the step's update; or played for a step that was never
trained."""


class AttemptFacts(WireModel):
    """A worker started an attempt at the job."""

    attempt: int
    worker_id: str
    versions: dict[str, str] = {}
    """Versions of Python and of the packages that compute."""
    place: dict[str, JsonValue] = {}
    """Engine, device, number format, threads."""
    model_fingerprint: str = ""
    """Fingerprint of the base model's weights, as in checkpoints."""


class PublishFacts(WireModel):
    """A version of a policy was published to the engine, which reported the hash of what arrived."""

    agent: str = ""
    version: int
    attempt: int
    weights_sha256: str
    """Hash of the learner's weights. The engine reported the same one, or the job would have stopped."""


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
    """Tokens from episodes, or from a few completions sampled for the comparison."""
    allowed: float
    """The mean difference above which the job would have stopped."""


class AdapterFacts(WireModel):
    """The first version of a policy whose adapter is not zero."""

    agent: str = ""
    version: int
    attempt: int
    tensors: int
    """Number of B matrices, which are zero before training."""
    nonzero_tensors: int
    norm: float
    """Norm of all B matrices together."""
    learner_shift: float | None = None
    """Mean |with adapter - without| of the learner's logprobs, in nats; None if not measured."""
    engine_shift: float | None = None
    """The engine's sampling logprobs against the learner's without the adapter: the effect of the adapter."""
    tokens: int = 0


class EpisodeFate(WireModel):
    """The outcome of one episode."""

    episode_id: str
    fate: Fate
    why: str = ""
    """For a dropped episode: its stop reason, `replaced_group`, `nothing_to_compare`, `masked`, or
    `no_turns` if no trained seat had a turn."""
    retries: int = 0
    """How often it failed before and was played again."""
    issued: int = 1
    """How often it was given to a worker; above 1, a worker was lost."""
    sampled_tokens: int = 0
    captured_tokens: int = 0
    """Sampled tokens that the engine is known to have returned to this episode's worker."""
    trained_tokens: int = 0
    matched_tokens: int = 0
    """Trained tokens in the learner's batch that equal a completion of the engine."""
    sha256: str = ""
    """Hash of the stored record's JSON."""


class StepLedger(WireModel):
    """The episodes of one train step."""

    step: int
    attempt: int
    episodes: Annotated[list[EpisodeFate], FailFast()] = Field(max_length=MOST_FACTS)


class StepFacts(WireModel):
    """Counts for one train step; `ledger_sha256` pins its `StepLedger`."""

    step: int
    attempt: int
    """The attempt that recorded it last."""
    episodes: int = 0
    trained: int = 0
    dropped: dict[str, int] = {}
    """Counts by reason."""
    retried: int = 0
    issued_again: int = 0
    """How often an episode was issued again after its worker was lost."""
    sampled_tokens: int = 0
    captured_tokens: int = 0
    trained_tokens: int = 0
    matched_tokens: int = 0
    ledger_sha256: str = ""
    records: int = 0
    """Records of a dataset."""
    records_sha256: str = ""
    """Hash of the token ids of the trained records, in order."""
    learning_rate: float | None = None
    learning_rates: dict[str, float] = {}
    """By agent, if the agents of a game are trained; `learning_rate` is None then."""


def chained(head: str, entry: bytes) -> str:
    """Return the head of a chain of hashes after one more entry: it depends on every entry and their order.

    Args:
        head: Head of the chain so far, in hexadecimal; at first `EMPTY_CHAIN`.
        entry: The entry to add.
    """
    return hashlib.sha256(bytes.fromhex(head) + hashlib.sha256(entry).digest()).hexdigest()


class EventsFacts(WireModel):
    """The job's log, pinned by a hash."""

    count: int
    head_sha256: str
    """Head of the hash chain: sha256(head of the previous event + sha256 of the event's JSON)."""


class CheckpointFacts(WireModel):
    """A stored checkpoint."""

    agent: str = ""
    view: CheckpointView
    manifest_sha256: str = ""
    """Hash of its `manifest.json`, which has the hashes of its other files; empty if it was deleted."""


class RunFacts(WireModel):
    """Everything that the service recorded about a run."""

    job: JobView
    """The effective settings."""
    service_version: str
    made_at: float = Field(ge=0, lt=1e11)
    """Unix seconds."""
    attempts: Annotated[list[AttemptFacts], FailFast()] = Field([], max_length=MOST_FACTS)
    publishes: Annotated[list[PublishFacts], FailFast()] = Field([], max_length=MOST_FACTS)
    agreements: Annotated[list[AgreementFacts], FailFast()] = Field([], max_length=MOST_FACTS)
    adapters: Annotated[list[AdapterFacts], FailFast()] = Field([], max_length=MOST_FACTS)
    steps: Annotated[list[StepFacts], FailFast()] = Field([], max_length=MOST_FACTS)
    not_learned: Annotated[list[EpisodeFate], FailFast()] = Field([], max_length=MOST_FACTS)
    """Stored episodes that belong to no recorded step."""
    checkpoints: Annotated[list[CheckpointFacts], FailFast()] = Field([], max_length=MOST_FACTS)
    events: EventsFacts
    data: dict[str, str] = {}
    """SHA-256 of datasets, by setting or by the environment that draws tasks from it; see `data_hashes`."""

    @property
    def state(self) -> JobState:
        """The job's state when the facts were read."""
        return self.job.state


class Signature(WireModel):
    """The signature of a run's facts by the operator of the service that recorded them."""

    public_key: str = Field(pattern=KEY_PATTERN)
    """Ed25519 key, 64 hexadecimal digits."""
    signature: str = Field(pattern=r"^[0-9a-f]{128}$")
    """Of `signed_bytes` of the facts."""


class SignedFacts(WireModel):
    """A run's facts as the service returns them."""

    facts: RunFacts
    signature: Signature


def signed_bytes(facts: RunFacts) -> bytes:
    """Return what an operator signs.

    The facts determine every byte of a bundle: they have the head of the chain of events, the hash of each
    step's ledger, which has those of the episodes, and the hash of each checkpoint's manifest, which has
    those of its files.
    """
    return SIGNED_PREFIX + hashlib.sha256(facts.model_dump_json().encode()).digest()


class Check(WireModel):
    """One statement about a run, with the figure behind it."""

    name: str
    verdict: Literal["holds", "fails", "not_shown"]
    """`not_shown`: the facts are missing, and `text` says why."""
    text: str


class BundledFile(WireModel):
    """A file of a bundle."""

    sha256: str
    bytes: int


class Certificate(WireModel):
    """A run's facts, the results of the checks, and the hashes of the files in its bundle."""

    format: Literal[1] = 1
    facts: RunFacts
    checks: Annotated[list[Check], FailFast()] = Field(max_length=1000)
    files: dict[str, BundledFile] = {}
    """Files of the bundle; empty for a certificate without one."""
    signature: Signature | None = None
    """Detects forgery, for those who know the operator's public key. None if it was removed."""
    sha256: str = ""
    """Hash of this document with this field empty. It detects damage, not forgery."""
