"""Jobs whose policy plays episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tinkergym.schema.jobs.common import LONGEST_SECONDS
from tinkergym.schema.jobs.evaluated import EnvironmentRef, EvaluatedSpec
from tinkergym.schema.mixtures import MOST_ENVIRONMENTS, drawn, names_of
from tinkergym.schema.model import Choice


class Limits(Choice):
    """Limits at which an episode is cut off."""

    max_turns: int = Field(64, ge=1)
    """Completions per episode; in a game, of each seat."""
    max_episode_tokens: int | None = Field(None, ge=1)
    """Sampled tokens of all turns together; None means that only the context limits them."""
    max_context_tokens: int | None = Field(None, ge=1)
    """Tokens of a prompt and its completion together. None uses the model's context, which is never
    exceeded."""
    step_timeout_seconds: float = Field(60.0, gt=0, le=LONGEST_SECONDS)
    """Time limit for one `reset` or `step` of the environment."""
    episode_timeout_seconds: float = Field(3600.0, gt=0, le=LONGEST_SECONDS)
    """Time limit for a whole episode, from when a worker starts to play it."""


Reasoning = Literal["keep", "drop"]
"""Whether later turns see the `<think>...</think>` of earlier completions."""


ExecutorName = Literal["thread", "process"]
"""Where environments run: each in a thread of the worker, or in its own process."""


class WeightedEnvironment(EnvironmentRef):
    """One of a job's several environments."""

    weight: float = Field(gt=0, le=1e6)
    """Its share of the groups is this, divided by the sum of all weights."""

    @property
    def ref(self) -> EnvironmentRef:
        """The environment without its weight."""
        return EnvironmentRef(id=self.id, kwargs=self.kwargs)


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

    @model_validator(mode="after")
    def _its_environments_differ(self) -> Self:
        if not self.environments:
            return self
        if len(self.environments) < 2:
            self._refuse("environments needs at least two entries; pass a single one as `environment`")
        if self.environment != self.environments[0].ref:
            self._refuse("environment must be the first of environments; leave it out")
        names = names_of([(one.id, one.kwargs) for one in self.environments])
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            self._refuse(
                f"environments has {twice!r} twice; add up their weights, or give them different kwargs"
            )
        if self.rollout == "script":
            self._refuse(
                "environments must be empty if a script plays, because the script chooses what it plays"
            )
        return self

    @model_validator(mode="after")
    def _its_player_can_do_so(self) -> Self:
        if self.executor == "process" and (self.deterministic or self.rollout == "script"):
            raise ValueError(
                "executor cannot be 'process' with deterministic=True or if a script plays; choose "
                "'thread', or remove the other setting"
            )
        if self.retries and self.rollout == "script":
            raise ValueError(
                "on_failure cannot be 'retry' if a script plays; catch the error in the script, "
                "or choose 'drop' or 'keep'"
            )
        self._refuse_idle(
            "client_timeout_seconds", self.rollout == "server", "rollout='client' or if a script plays"
        )
        return self

    @model_validator(mode="after")
    def _its_player_plays_the_evaluations(self) -> Self:
        if self.evaluate and self.rollout == "script":
            raise ValueError(
                "evaluate needs rollout='server' or 'client'; a script that plays can call "
                "job.policy().evaluate(...) itself"
            )
        for one in self.evaluate if self.rollout == "client" else ():
            if one.environment not in ("", *self.own_environments):
                raise ValueError(
                    f"evaluate names {one.environment!r}, but with rollout='client' only the job's own "
                    f"environment is played; leave it out, or call job.policy().evaluate(...) yourself"
                )
        return self

    @property
    def own_environments(self) -> dict[str, EnvironmentRef]:
        """The job's environments by the names used in metrics and evaluations."""
        own = [one.ref for one in self.environments] or [self.environment]
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
    def retries(self) -> int:
        """How often a failed episode is played again."""
        return int(self.on_failure.partition(":")[2] or 0)
