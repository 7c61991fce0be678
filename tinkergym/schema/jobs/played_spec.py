"""Jobs whose policy plays episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tinkergym.errors import InvalidRequestError, PromptTooLongError
from tinkergym.schema.chat_templates import TemplateVariables
from tinkergym.schema.jobs.evaluated_spec import EvaluatedSpec
from tinkergym.schema.jobs.parts import (
    LONGEST_SECONDS,
    EnvironmentRef,
    ExecutorName,
    Groups,
    Limits,
    Reasoning,
    WeightedEnvironment,
)
from tinkergym.schema.mixtures import MOST_ENVIRONMENTS, drawn, names_of
from tinkergym.schema.refusals import Refusal


class PlayedSpec(EvaluatedSpec):
    """Settings of jobs whose policy plays episodes."""

    environment: EnvironmentRef
    """The only environment, or the first of `environments`."""
    environments: list[WeightedEnvironment] = Field([], max_length=MOST_ENVIRONMENTS)
    """Several environments, each with its share of a step's groups. Empty if there is only one."""
    limits: Limits = Limits()
    rollout: Literal["server", "client", "script"] = "server"
    """Who plays the episodes: workers of the service, a worker in the client, or the user's own loop, one at
    a time."""
    system_prompt: str | None = None
    """Precedes the first observation. None uses the environment's own metadata["system_prompt"], if any."""
    environment_prompt: str | None = None
    """The environment's own prompt, recorded by whichever side creates the environment first, client or
    service. So the policy gets the same prompt as in training where the environment is not available."""
    environment_variables: TemplateVariables = {}
    """The template variables that the environment's class sets, recorded likewise."""
    environment_data: dict[str, Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]] = Field(
        {}, max_length=MOST_ENVIRONMENTS
    )
    """SHA-256 of the tasks of each environment that draws from a dataset, by its name; recorded likewise.
    Empty if they could not be hashed in time."""
    reasoning: Reasoning = "keep"
    """Whether later turns see the `<think>...</think>` of earlier completions. If it is dropped, a new
    segment begins."""
    executor: ExecutorName = "thread"
    """Where environments run. `process` is for those that crash, hold the interpreter, or compute a lot."""
    deterministic: bool = False
    """Sample a step's episodes in lockstep, so that the same seed gives the same bits. Slower."""
    on_failure: str = Field("drop", pattern=r"^(drop|keep|retry:[1-9][0-9]?)$")
    """How failed episodes are handled: `drop` excludes them from training, `keep` trains on what they earned
    until then, `retry:N` plays them again up to N times and then drops them."""
    max_failed_fraction: float = Field(0.5, ge=0, le=1)
    """The job fails if a larger fraction of a step's episodes failed. Otherwise failed episodes are excluded
    and counted."""
    warn_failed_fraction: float = Field(0.1, ge=0, le=1)
    """The job ends with the warning `episodes_lost` if it lost a larger fraction of all its episodes."""
    keep_episodes: int | None = Field(None, ge=0, le=10**9)
    """The number of newest steps whose episodes the service keeps for `job.episodes()`. None keeps all of
    them until the job is deleted, 0 keeps none."""
    client_timeout_seconds: float = Field(30.0, gt=0, le=LONGEST_SECONDS)
    """The job becomes `waiting_for_client` after this long without a message from the client's workers."""
    parity_threshold: float | None = Field(None, gt=0)
    """Largest mean |learner - sampling| logprob difference, in nats, before the job stops. None means 0.001,
    or 0.02 if the service computes in bfloat16."""

    @model_validator(mode="before")
    @classmethod
    def _the_first_environment_is_known_by_itself(cls, settings: Any) -> Any:
        if not isinstance(settings, Mapping) or "environment" in settings:
            return settings
        several = settings.get("environments")
        first = several[0] if isinstance(several, list | tuple) and several else None
        if isinstance(first, WeightedEnvironment):
            return {**settings, "environment": first.ref}
        if isinstance(first, Mapping):
            own = {name: value for name, value in first.items() if name != "weight"}
            return {**settings, "environment": own}
        return settings

    @property
    def own_environments(self) -> dict[str, EnvironmentRef]:
        """The job's environments by the names used in metrics and evaluations."""
        if not self.environments:
            return {self.environment.id: self.environment}
        own = [one.ref for one in self.environments]
        return dict(zip(names_of([(ref.id, ref.kwargs) for ref in own]), own, strict=True))

    @property
    def played_in(self) -> str:
        """The job's environments as readable text."""
        total = sum(one.weight for one in self.environments)
        shares = zip(self.own_environments, self.environments, strict=False)
        return ", ".join(f"{name} {one.weight / total:.0%}" for name, one in shares) or self.environment.id

    def environment_at(self, step: int, group: int) -> EnvironmentRef:
        """Return the environment that a group of a train step plays."""
        if not self.environments:
            return self.environment
        weights = [one.weight for one in self.environments]
        return self.environments[drawn(weights, seed=self.seed, step=step, group=group)].ref

    def data_sha256_of(self, environment: EnvironmentRef) -> str:
        """Return the recorded hash of an environment's tasks; empty if there is none."""
        named = (name for name, own in self.own_environments.items() if own == environment)
        return self.environment_data.get(next(named, ""), "")

    def with_environments(self, change: Callable[[EnvironmentRef], EnvironmentRef]) -> Self:
        """Return the job with each of its environments changed in the same way."""
        several = [
            WeightedEnvironment(**change(one.ref).model_dump(), weight=one.weight)
            for one in self.environments
        ]
        first = several[0].ref if several else change(self.environment)
        return self.model_copy(update={"environment": first, "environments": several})

    @property
    def effective_prompt(self) -> str | None:
        """The system prompt that training uses."""
        return self.environment_prompt if self.system_prompt is None else self.system_prompt

    @property
    def played(self) -> Self:
        """These settings, as the job learns from episodes that its policy plays."""
        return self

    @property
    def played_by(self) -> Literal["", "server", "client", "script"]:
        """Who plays the job's episodes."""
        return self.rollout

    @property
    def data_hashes(self) -> dict[str, str]:
        """The hashes of its environments' tasks and of those of its evaluations, where known."""
        own = {name: sha256 for name, sha256 in self.environment_data.items() if sha256}
        return super().data_hashes | own

    @property
    def groups(self) -> Groups:
        """The episodes of a train step."""
        raise NotImplementedError

    def updated_at(self, step: int) -> tuple[str, ...]:
        """Return the agents whose policies learn in a train step."""
        del step
        return self.trained_agents

    def with_group_rewards(self, pays_groups: bool) -> Self | Refusal:
        """Return the job with a note of whether its environment scores groups together."""
        del pays_groups
        return self

    def shown_first(self) -> dict[str, Self]:
        """Return the job's settings and, by agent, those of each seat with its own prompt, sampling or model.

        Each can then be checked for whether its first prompt leaves room. The job itself is under "".
        """
        of_seats = {agent: self.for_agent(agent) for agent in (self.trained_agents if self.seats else ())}

        def shown(one: PlayedSpec) -> tuple[object, ...]:
            return one.system_prompt, one.sampling, one.model

        return {"": self} | {agent: own for agent, own in of_seats.items() if shown(own) != shown(self)}

    @property
    def step_work(self) -> tuple[object, ...]:
        """Also what is played, and where."""
        where = (self.played_in, self.rollout, self.deterministic, self.sampling, self.limits)
        return *super().step_work, self.groups.episodes, self.seats, *where

    def require_room(self, prompt_tokens: int, context_length: int) -> None:
        """Check that a first prompt leaves room for the longest completion in the model's context.

        Raises:
            InvalidRequestError: The job asks for more context than its model has.
            PromptTooLongError: The prompt leaves no room.
        """
        most = self.limits.max_context_tokens
        if most is not None and most > context_length:
            raise InvalidRequestError(
                f"the model {self.model!r} has a context of {context_length} tokens, not {most}",
                hint="leave it out to use all of them, or choose a model with a longer context",
                field="limits.max_context_tokens",
            )
        longest = self.sampling.max_turn_tokens
        needed = prompt_tokens + longest
        wants = f"a first prompt of {prompt_tokens} tokens and an answer of up to {longest}"
        if needed > context_length:
            raise PromptTooLongError(
                f"{wants} exceed the context of {context_length} tokens of {self.model!r}",
                hint="lower max_turn_tokens, shorten the prompt, or choose a model with a longer context",
                field="sampling.max_turn_tokens",
            )
        if needed > (most or needed):
            raise PromptTooLongError(
                f"{wants} exceed limits.max_context_tokens={most}",
                hint=f"set it to {needed} or more, lower max_turn_tokens, or shorten the prompt",
                field="limits.max_context_tokens",
            )

    def seated(self, agents: Sequence[str], offered: Sequence[str]) -> Self:
        """Return the job with what depends on its game: its agents in self-play, and default anchors.

        Args:
            agents: All agents of the game.
            offered: The names of the players that it offers.
        """
        del agents, offered
        return self

    @property
    def retries(self) -> int:
        """How often a failed episode is played again."""
        return int(self.on_failure.partition(":")[2] or 0)
