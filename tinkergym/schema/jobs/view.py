"""A job as the service shows it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, TypeAdapter

from tinkergym.schema.events import MOST_UPDATES, ErrorView, JobState, SettingsUpdate
from tinkergym.schema.jobs.spec import StoredSpec
from tinkergym.schema.model import WireModel


class InstalledPack(WireModel):
    """An installed pack of environments."""

    name: str = Field(max_length=200)
    """Its name in `tinkergym envs`."""
    distribution: str = Field(max_length=200)
    """Its distribution name, as in pip."""
    version: str = Field(max_length=200)


_MOST_PACKS = 1000


INSTALLED_PACKS: TypeAdapter[list[InstalledPack]] = TypeAdapter(
    Annotated[list[InstalledPack], Field(max_length=_MOST_PACKS)]
)


CLIENT_PACKS_HEADER = "Tinkergym-Packs"
"""Header with `INSTALLED_PACKS` as JSON, sent with a job. It is not part of the job, so the same job is the
same request wherever it comes from."""


class Cost(WireModel):
    """What something has cost, by the operator's prices (`prices.*`)."""

    amount: float
    currency: str = Field("", max_length=10)


class JobView(WireModel):
    """A job as the service shows it."""

    job_id: str
    spec: StoredSpec
    """The effective configuration, with defaults and `updates` filled in."""
    state: JobState
    reason: str = ""
    """Why the job is in this state, if that needs an explanation."""
    error: ErrorView | None = None
    step: int = 0
    """Train steps that are done."""
    policy_version: int = 0
    attempt: int = 0
    """How many times a worker took the job; above 1 it was resumed."""
    created_at: float
    """Unix seconds."""
    updated_at: float
    last_seq: int = 0
    """Number of the newest event in its log."""
    updates: list[SettingsUpdate] = Field(default_factory=list, max_length=MOST_UPDATES)
    """Changes of its settings during training, in order."""
    used_seconds: float = 0.0
    """Time with a place, in seconds; see `Budget`."""
    used_tokens: int = 0
    """Sampled and trained tokens; see `Budget`."""
    cost: Cost | None = None
    """Of the used time and tokens; None if the operator has set no prices."""
    packs: dict[str, str] = Field(default_factory=dict)
    """Versions of the packs, installed with the service, that the job used."""
    client_packs: list[InstalledPack] = Field(default_factory=list, max_length=_MOST_PACKS)
    """Packs installed where the job was submitted, if its episodes are played there."""

    def __repr__(self) -> str:
        # One line per job for lists; `print(view)` shows everything.
        return f"<JobView {self.job_id} {self.state} at step {self.step}/{self.spec.steps}>"


class DeletedJob(WireModel):
    """A deleted job."""

    job_id: str
    bytes: int
    """Freed bytes."""
