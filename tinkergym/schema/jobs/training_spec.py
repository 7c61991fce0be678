"""What every kind of job has: settings, and the questions that it answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from tinkergym.errors import TemplateError
from tinkergym.schema.chat_templates import (
    MOST_CHARACTERS,
    TemplateDay,
    TemplateVariables,
    template_text,
)
from tinkergym.schema.ids import POLICY_REF, policy_of
from tinkergym.schema.jobs.answers import DefaultAnswers
from tinkergym.schema.jobs.parts import (
    Adapter,
    Budget,
    EnvironmentRef,
    LoRA,
    Sampling,
)
from tinkergym.schema.jobs.rules.rule_table import RuleTable, refusal_of
from tinkergym.schema.model import UserSettings
from tinkergym.schema.optimizer import AdamW
from tinkergym.schema.refusals import Refusal
from tinkergym.schema.views import RendererBundle


class TrainingSpec(DefaultAnswers, UserSettings):
    """Settings of every kind of job: which model is trained, for how long, and what is kept."""

    rules: ClassVar[tuple[RuleTable, ...]] = ()
    """What its settings must be to each other."""

    model: str = Field("nano", min_length=1, max_length=500)
    """A model name of the service, a model directory on its machine, or a Hugging Face hub id."""
    adapter: Adapter = LoRA()
    initial_policy: str = Field("", pattern=rf"^({POLICY_REF})?$", max_length=200)
    """`job-...@40`, `policy-...@40`, `job-...@step:40`: start from that version of a trained policy, with the
    same model and adapter. Without a version, from the newest checkpoint; the service records which that
    was."""
    chat_template: str = Field("", max_length=MOST_CHARACTERS)
    """Jinja text instead of the model's own template, or `plain` for base models, which have none. Empty uses
    the model's."""
    template_variables: TemplateVariables = {}
    """Values of names that the chat template reads, such as {"enable_thinking": False}, in training,
    evaluations and exports. They replace those of environments and tasks."""
    template_date: TemplateDay = ""
    """The date that the chat template writes, such as 2026-11-29. Empty is the day of submission, if it
    writes one; the service records which that was."""
    template_sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    """Hash of the chat template with its variables and its date; recorded by the service."""
    optimizer: AdamW = AdamW()
    """The optimizer."""
    sampling: Sampling = Sampling()
    steps: int = Field(ge=1, le=10**9)
    """Train steps."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seeds all randomness."""
    checkpoint_every: int = Field(10, ge=1)
    """Steps between checkpoints; the last step always writes one."""
    keep_checkpoints: int = Field(3, ge=1)
    budget: Budget | None = None
    """How much the job may use before it pauses; None means no limit."""
    name: str = Field("", max_length=200)
    """A label to find the job in lists."""

    @field_validator("chat_template")
    @classmethod
    def _a_template_may_be_named(cls, given: str) -> str:
        text = template_text(given)
        if isinstance(text, Refusal):
            raise replace(text, field="").in_validator()
        return text

    @model_validator(mode="after")
    def _follows_its_rules(self) -> Self:
        if refusal := refusal_of(self, self.rules):
            raise refusal.in_validator()
        return self

    def rendered_by(self, job_id: str, agent: str = "") -> str:
        """Return whose renderer an agent's policy uses: a model's, the job's, or its own."""
        seat = self.for_agent(agent)
        if not (seat.chat_template or seat.template_variables or seat.template_date):
            return seat.model
        of_job = (seat.model, seat.template_variables) == (self.model, self.template_variables)
        return job_id if of_job else policy_of(job_id, agent)

    def rendered(self, bundle: RendererBundle) -> RendererBundle:
        """Return the renderer of the job's own model as its training uses it.

        Raises:
            TemplateError: The model's chat template is no longer that of the job's submission.
        """
        settled = bundle.with_settings(self.template_variables, self.template_date)
        if self.template_sha256 not in ("", settled.template_sha256):
            raise TemplateError(
                f"the chat template of {self.model!r} has changed since the job was submitted",
                hint="put the old one back, or submit the job again",
                field="chat_template",
                code="template_changed",
            )
        return settled

    @property
    def trained_agents(self) -> tuple[str, ...]:
        """The agents with their own policy; the agent of a single policy is ""."""
        return ("",)

    def adapter_of(self, agent: str) -> Adapter:
        """Return the adapter of one of the `trained_agents`."""
        return self.for_agent(agent).adapter

    def for_agent(self, agent: str) -> Self:
        """Return the settings that apply to the policy of one of the `trained_agents`."""
        del agent
        return self

    @property
    def played(self) -> Any:  # A `PlayedSpec`, whose module stands on this one.
        """These settings if the job learns from episodes that its policy plays, else None."""
        return None

    @property
    def played_by(self) -> Literal["", "server", "client", "script"]:
        """Who plays the job's episodes, or those of its evaluations if it has no others; empty for none."""
        return ""

    def environments_played(self) -> list[EnvironmentRef]:
        """Return the environments of its episodes: its own, or those of its evaluations."""
        return []

    @property
    def data_hashes(self) -> dict[str, str]:
        """The hashes of its data: of its datasets, or of its environments' tasks."""
        return self.datasets

    @property
    def step_work(self) -> tuple[object, ...]:
        """What steps of two jobs must have in common to take about the same time."""
        return type(self), self.model, self.adapter

    def models(self) -> dict[str, str]:
        """Return the base models that it names, by setting; without those of single agents."""
        return {"model": self.model}

    def references(self) -> dict[str, str]:
        """Return the policies and jobs that it names, by setting."""
        return {"initial_policy": self.initial_policy} if self.initial_policy else {}
