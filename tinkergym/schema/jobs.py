"""The kinds of jobs beside RL, the union of all kinds, and a job as the service shows it."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, field_validator, model_validator

from tinkergym.schema.data import Sha256
from tinkergym.schema.events import ErrorView, JobState
from tinkergym.schema.job_spec import EvaluatedSpec, JobSpec, PlayedSpec
from tinkergym.schema.model import Choice, WireModel
from tinkergym.schema.policy_calls import PolicySpec
from tinkergym.schema.policy_refs import HOW_TO_WRITE_POLICIES, POLICY_REF, PolicyRef
from tinkergym.schema.updates import MOST_UPDATES, SettingsUpdate

Schedule = Literal["constant", "linear", "cosine"]


class WrittenDataSpec(EvaluatedSpec):
    """What jobs say that learn from written data, in order of a shuffle by `seed`.

    `sampling` says how the policy answers when it is asked; training samples nothing.
    """

    data: Sha256
    """The name of an uploaded data set."""
    eval_data: Sha256 | None = None
    """Another one, which is not trained on, to measure the loss with."""
    held_out: float = Field(0.0, ge=0, lt=1)
    """Instead of `eval_data`: this share of `data`, drawn by `seed`, is not trained on but measured with."""
    eval_every: int = Field(10, ge=1)
    """Steps between two measurements; the first and the last step always make one."""
    batch_size: int = Field(32, ge=1)
    """Records per train step."""
    shuffle: bool = True
    """A new order in every pass over the data; False keeps the order of the file."""
    learning_rate: float = Field(1e-3, gt=0, le=10)
    lr_schedule: Schedule = "linear"
    """From `learning_rate` at the first step towards 0 at the last, or constant."""
    warmup_steps: int = Field(0, ge=0, le=10**9)
    max_grad_norm: float = Field(1.0, gt=0)
    weight_decay: float = Field(0.0, ge=0, le=1e6)

    @model_validator(mode="after")
    def _one_way_to_measure(self) -> Self:
        if self.eval_data is not None and self.held_out:
            raise ValueError("held_out cannot be given with eval_data; choose one of them")
        measured = self.eval_data is not None or self.held_out > 0
        self._refuse_idle("eval_every", not measured, "eval_data or held_out")
        self._refuse_endless_warmup(self.warmup_steps)
        return self

    def held_out_records(self, records: int) -> int:
        """Return how many of `records` are measured with instead of trained on."""
        return max(1, round(self.held_out * records)) if self.held_out else 0


class SFTSpec(WrittenDataSpec):
    """Supervised fine-tuning: raise the likelihood of written answers."""

    kind: Literal["sft"] = "sft"
    aggregation: Literal["token", "sequence"] = "token"
    """Mean over all trained tokens of the step, or over its records of their token means."""


class _Preference(Choice):
    """A loss on pairs of answers."""


class DPO(_Preference):
    """Direct preference optimisation (arXiv:2305.18290): a logistic loss on the margin over a reference."""

    name: Literal["dpo"] = "dpo"
    beta: float = Field(0.1, gt=0)
    """Scales the margin, in 1 / nats; small values let the policy leave the reference further behind."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """The share of pairs that are taken to be the wrong way round (conservative DPO)."""


class IPO(_Preference):
    """Identity preference optimisation (arXiv:2310.12036): the margin is drawn to 1 / (2 beta)."""

    name: Literal["ipo"] = "ipo"
    beta: float = Field(0.1, gt=0)


class Hinge(_Preference):
    """A hinge on the margin over a reference (SLiC-HF, arXiv:2305.10425, as in arXiv:2309.06657)."""

    name: Literal["hinge"] = "hinge"
    beta: float = Field(0.1, gt=0)


class SimPO(_Preference):
    """Simple preference optimisation (arXiv:2405.14734): mean logprobs and a target margin, no reference."""

    name: Literal["simpo"] = "simpo"
    beta: float = Field(2.0, gt=0)
    gamma: float = Field(1.0, ge=0)
    """The target margin, in units of beta times nats per token."""


class ORPO(_Preference):
    """Odds ratio preference optimisation (arXiv:2403.07691): the chosen answer's likelihood, no reference."""

    name: Literal["orpo"] = "orpo"
    odds_weight: float = Field(0.1, gt=0)
    """In front of the odds ratio's loss (lambda in the paper)."""


PreferenceLoss = Annotated[DPO | IPO | Hinge | SimPO | ORPO, Field(discriminator="name")]


class PreferenceSpec(WrittenDataSpec):
    """Preference training: raise the chosen answer over the rejected one.

    The reference of those losses that have one is the policy that the job begins with.
    """

    kind: Literal["preference"] = "preference"
    loss: PreferenceLoss = DPO()
    learning_rate: float = Field(1e-4, gt=0, le=10)


class DistillationSpec(PlayedSpec):
    """On-policy distillation: the student plays, a teacher says how likely it finds each sampled token.

    The advantage of a token is the teacher's logprob minus the student's, an estimate of minus the reverse KL
    per token (arXiv:2306.13649, arXiv:2306.08543); the environment's rewards are shown, not learned from.
    """

    kind: Literal["distillation"] = "distillation"
    teacher: str = Field(min_length=1, max_length=500)
    """A model as in `model`, or `job-...@version`, as in `initial_policy`: what another job trained. It must
    have the student's tokenizer.
    """
    episodes_per_step: int = Field(64, ge=2)
    learning_rate: float = Field(1e-3, gt=0, le=10)
    lr_schedule: Schedule = "constant"
    warmup_steps: int = Field(0, ge=0, le=10**9)
    updates_per_step: int = Field(1, ge=1, le=1000)
    """Optimiser steps on each batch of episodes."""
    max_grad_norm: float = Field(1.0, gt=0)
    weight_decay: float = Field(0.0, ge=0, le=1e6)

    @model_validator(mode="after")
    def _its_rate_is_reached(self) -> Self:
        self._refuse_endless_warmup(self.warmup_steps)
        return self

    @field_validator("teacher")
    @classmethod
    def _a_policy_is_written_as_one(cls, teacher: str) -> str:
        if PolicyRef.is_meant(teacher) and not re.fullmatch(POLICY_REF, teacher):
            raise ValueError(f"{teacher!r} is not a reference to a policy; {HOW_TO_WRITE_POLICIES}")
        return teacher


AnyJobSpec = Annotated[
    JobSpec | SFTSpec | PreferenceSpec | DistillationSpec | PolicySpec, Field(discriminator="kind")
]

ANY_JOB_SPEC: TypeAdapter[JobSpec | SFTSpec | PreferenceSpec | DistillationSpec | PolicySpec] = TypeAdapter(
    AnyJobSpec
)


def stored_spec(written: str) -> AnyJobSpec:
    """Read a job's settings that the service accepted and stored as JSON."""
    return ANY_JOB_SPEC.validate_json(written)


class InstalledPack(WireModel):
    """A pack of environments that is installed somewhere."""

    name: str = Field(max_length=200)
    """Of its entry point, as `tinkergym envs` shows it."""
    distribution: str = Field(max_length=200)
    """What pip calls it."""
    version: str = Field(max_length=200)


_MOST_PACKS = 1000

INSTALLED_PACKS: TypeAdapter[list[InstalledPack]] = TypeAdapter(
    Annotated[list[InstalledPack], Field(max_length=_MOST_PACKS)]
)

CLIENT_PACKS_HEADER = "Tinkergym-Packs"
"""Carries `INSTALLED_PACKS` as JSON beside a job that is submitted. A header, since it says nothing of what
the job is to be: the same job is the same request wherever it comes from.
"""


class JobView(WireModel):
    """A job as the service shows it."""

    job_id: str
    spec: AnyJobSpec
    """The effective configuration, defaults and `updates` filled in."""
    state: JobState
    reason: str = ""
    """Why the job is in this state, when that needs saying."""
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
    """How its settings were changed while it trained, in order."""
    used_seconds: float = 0.0
    """With a place, as far as they are counted; see `Budget`."""
    used_tokens: int = 0
    """Sampled and trained tokens; see `Budget`."""
    packs: dict[str, str] = Field(default_factory=dict)
    """Versions of the packs, installed with the service, that the job used."""
    client_packs: list[InstalledPack] = Field(default_factory=list, max_length=_MOST_PACKS)
    """What was installed where the job was submitted from, if its episodes are played there."""

    def __repr__(self) -> str:
        # Of a list of jobs, one line each; `print(view)` shows all of one.
        return f"<JobView {self.job_id} {self.state} at step {self.step}/{self.spec.steps}>"


class DeletedJob(WireModel):
    """A job that is no more."""

    job_id: str
    bytes: int
    """Of its files, which were freed."""
