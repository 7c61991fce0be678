"""The kinds of jobs besides RL, the union of all kinds, and a job as the service shows it."""

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
    """Settings of jobs that train on a dataset, in an order shuffled by `seed`.

    `sampling` applies when the policy is used; training does not sample.
    """

    data: Sha256
    """The name of an uploaded dataset."""
    eval_data: Sha256 | None = None
    """Another dataset, used for evaluation and not for training."""
    held_out: float = Field(0.0, ge=0, lt=1)
    """Instead of `eval_data`: this fraction of `data`, drawn by `seed`, is used for evaluation and not for
    training."""
    eval_every: int = Field(10, ge=1)
    """Steps between evaluations; the first and the last step always evaluate."""
    batch_size: int = Field(32, ge=1)
    """Records per train step."""
    shuffle: bool = True
    """A new order in every pass over the data; False keeps the order of the file."""
    learning_rate: float = Field(1e-3, gt=0, le=10)
    lr_schedule: Schedule = "linear"
    """Decaying from `learning_rate` at the first step towards 0 at the last, or constant."""
    warmup_steps: int = Field(0, ge=0, le=10**9)
    max_grad_norm: float = Field(1.0, gt=0)
    weight_decay: float = Field(0.0, ge=0, le=1e6)

    @model_validator(mode="after")
    def _one_way_to_measure(self) -> Self:
        if self.eval_data is not None and self.held_out:
            raise ValueError("held_out cannot be given with eval_data; set only one of them")
        measured = self.eval_data is not None or self.held_out > 0
        self._refuse_idle("eval_every", not measured, "eval_data or held_out")
        self._refuse_endless_warmup(self.warmup_steps)
        return self

    def held_out_records(self, records: int) -> int:
        """Return how many of `records` are held out for evaluation."""
        return max(1, round(self.held_out * records)) if self.held_out else 0


class SFTSpec(WrittenDataSpec):
    """Supervised fine-tuning: raise the likelihood of the dataset's completions."""

    kind: Literal["sft"] = "sft"
    aggregation: Literal["token", "sequence"] = "token"
    """Mean over all trained tokens of the step, or over records of their token means."""


class _Preference(Choice):
    """A loss on pairs of completions."""


class DPO(_Preference):
    """Direct preference optimization (arXiv:2305.18290): a logistic loss on the margin over a reference."""

    name: Literal["dpo"] = "dpo"
    beta: float = Field(0.1, gt=0)
    """Scales the margin, in 1 / nats; small values allow the policy to move further from the reference."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """The fraction of pairs that are assumed to be swapped (conservative DPO)."""


class IPO(_Preference):
    """Identity preference optimization (arXiv:2310.12036): the target margin is 1 / (2 beta)."""

    name: Literal["ipo"] = "ipo"
    beta: float = Field(0.1, gt=0)


class Hinge(_Preference):
    """A hinge on the margin over a reference (SLiC-HF, arXiv:2305.10425, as in arXiv:2309.06657)."""

    name: Literal["hinge"] = "hinge"
    beta: float = Field(0.1, gt=0)


class SimPO(_Preference):
    """Simple preference optimization (arXiv:2405.14734): mean logprobs and a target margin, no reference."""

    name: Literal["simpo"] = "simpo"
    beta: float = Field(2.0, gt=0)
    gamma: float = Field(1.0, ge=0)
    """The target margin, in units of beta times nats per token."""


class ORPO(_Preference):
    """Odds ratio preference optimization (arXiv:2403.07691): also raises the chosen likelihood."""

    name: Literal["orpo"] = "orpo"
    odds_weight: float = Field(0.1, gt=0)
    """Weight of the odds ratio's loss (lambda in the paper)."""


PreferenceLoss = Annotated[DPO | IPO | Hinge | SimPO | ORPO, Field(discriminator="name")]


class PreferenceSpec(WrittenDataSpec):
    """Preference training: raise the chosen completion over the rejected one.

    For losses with a reference, it is the policy that the job starts from.
    """

    kind: Literal["preference"] = "preference"
    loss: PreferenceLoss = DPO()
    learning_rate: float = Field(1e-4, gt=0, le=10)


class DistillationSpec(PlayedSpec):
    """On-policy distillation: the student plays, and a teacher scores each sampled token.

    The advantage of a token is the teacher's logprob minus the student's, an estimate of minus the reverse KL
    per token (arXiv:2306.13649, arXiv:2306.08543); the environment's rewards are reported, not trained on.
    """

    kind: Literal["distillation"] = "distillation"
    teacher: str = Field(min_length=1, max_length=500)
    """The teacher: a model as in `model`, or a reference as in `initial_policy`. It must have the student's
    tokenizer."""
    episodes_per_step: int = Field(64, ge=2)
    learning_rate: float = Field(1e-3, gt=0, le=10)
    lr_schedule: Schedule = "constant"
    warmup_steps: int = Field(0, ge=0, le=10**9)
    updates_per_step: int = Field(1, ge=1, le=1000)
    """Optimizer steps per batch of episodes."""
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
    """Parse the stored JSON of a job's settings."""
    return ANY_JOB_SPEC.validate_json(written)


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


class JobView(WireModel):
    """A job as the service shows it."""

    job_id: str
    spec: AnyJobSpec
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
