"""On-policy distillation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from tinkergym.schema.ids import HOW_TO_WRITE_POLICIES, PolicyRef
from tinkergym.schema.jobs.parts import Groups
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.rules.episode_rules import PLAYED
from tinkergym.schema.jobs.rules.evaluation_rules import EVALUATED
from tinkergym.schema.jobs.rules.policy_rules import DISTILLATION
from tinkergym.schema.optimizer import Optimized
from tinkergym.schema.refusals import Refusal


class DistillationSpec(PlayedSpec, Optimized):
    """On-policy distillation: the student plays, and a teacher scores each sampled token.

    The advantage of a token is the teacher's logprob minus the student's, an estimate of minus the reverse KL
    per token (arXiv:2306.13649, arXiv:2306.08543); the environment's rewards are reported, not trained on.
    """

    rules = (EVALUATED, PLAYED, DISTILLATION)
    kind: Literal["distillation"] = "distillation"
    teacher: str = Field(min_length=1, max_length=500)
    """A model, or a trained policy such as `job-...@40`. It must have the student's tokenizer."""
    episodes_per_step: int = Field(64, ge=2)
    """Episodes per train step."""
    updates_per_step: int = Field(1, ge=1, le=1000)
    """Optimizer steps per batch of episodes."""

    @property
    def groups(self) -> Groups:
        """The episodes of a train step, each with a start of its own."""
        return Groups(self.episodes_per_step, fields=("episodes_per_step", ""))

    @property
    def step_work(self) -> tuple[object, ...]:
        """Also how often each episode is trained on."""
        return *super().step_work, self.updates_per_step

    def models(self) -> dict[str, str]:
        """Return the base models that it names, by setting."""
        return super().models() | ({} if PolicyRef.is_meant(self.teacher) else {"teacher": self.teacher})

    def references(self) -> dict[str, str]:
        """Return the policies and jobs that it names, by setting."""
        return super().references() | ({"teacher": self.teacher} if PolicyRef.is_meant(self.teacher) else {})

    @field_validator("teacher")
    @classmethod
    def _a_policy_is_written_as_one(cls, teacher: str) -> str:
        if PolicyRef.is_meant(teacher) and PolicyRef.find(teacher) is None:
            reason = f"{teacher!r} is not a reference to a policy"
            raise Refusal("", reason, HOW_TO_WRITE_POLICIES, "not_a_policy").in_validator()
        return teacher
