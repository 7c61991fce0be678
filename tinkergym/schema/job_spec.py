"""The settings of an RL job, shared by client and service. Unknown or invalid settings are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from tinkergym.schema.algorithms import GRPO, Algorithm
from tinkergym.schema.budget import Budget
from tinkergym.schema.chat_templates import MOST_CHARACTERS, template_text
from tinkergym.schema.collapse_guard import CollapseGuard
from tinkergym.schema.evaluate_every import MOST_EVALUATIONS, EvaluateEvery
from tinkergym.schema.mixtures import MOST_ENVIRONMENTS, drawn, names_of
from tinkergym.schema.model import Choice, UserSettings, WireModel
from tinkergym.schema.names import REMOTE_ID
from tinkergym.schema.opponents import Base, External, FixedPlayer, Frozen, League, Replay, Scripted
from tinkergym.schema.optimizer import AdamW
from tinkergym.schema.policy_refs import POLICY_REF
from tinkergym.schema.seat_tools import SeatTools
from tinkergym.trajectory.trajectory import AgentId

LEAST_TEMPERATURE = 1e-3
"""Logits divided by much less become infinite, as if the policy had diverged."""


MOST_TEMPERATURE = 10


LONGEST_SECONDS = 1e9
"""Thirty years. Clocks and threads cannot wait for much longer."""


class LoRA(Choice):
    """Train low-rank adapters for the linear layers of the decoder (arXiv:2106.09685)."""

    kind: Literal["lora"] = "lora"
    rank: int = Field(8, ge=1, le=512)
    """Rank of the two factors of each adapted layer."""
    alpha: float = Field(16.0, gt=0, le=1e6)
    """The adapter's output is scaled by `alpha / rank`."""
    rslora: bool = False
    """Scale by `alpha / sqrt(rank)` instead (rank-stabilized LoRA, arXiv:2312.03732)."""
    target_modules: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field((), max_length=64)
    """Which layers to adapt: names (`q_proj`) or paths (`layers.0.*`), `*` for anything. Each must match a
    layer; empty adapts all."""

    @field_validator("target_modules", mode="before")
    @classmethod
    def _one_pattern_is_a_list_of_one(cls, given: object) -> object:
        return (given,) if isinstance(given, str) else given

    vision: bool = False
    """Also adapt the vision tower and its connector. Refused for text-only models."""


class FullParameters(Choice):
    """Train every parameter of the model."""

    kind: Literal["full"] = "full"


Adapter = Annotated[LoRA | FullParameters, Field(discriminator="kind")]


class Sampling(Choice):
    """How completions are sampled during training."""

    temperature: float = Field(1.0, ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE)
    """Logits are divided by it, in the engine and in the learner."""
    max_turn_tokens: int = Field(64, ge=1)
    """Most sampled tokens per completion."""


class Train(Choice):
    """A seat of a game with its own policy, which the job trains."""

    kind: Literal["train"] = "train"
    adapter: Adapter | None = None
    """None uses the job's adapter."""
    system_prompt: str | None = None
    """None uses the job's system prompt."""
    tools: SeatTools | None = None
    """Tools that the policy may call before it moves: a list of names, or `SeatTools`. They are described
    after the game's own system prompt; `system_prompt` replaces both."""
    algorithm: Algorithm | None = None
    """Replaces the job's algorithm as a whole, its KL penalty and credit included, except `group_size` and
    `groups_per_step`. None uses the job's algorithm."""
    sampling: Sampling | None = None
    """None uses the job's sampling."""
    initial_policy: str | None = Field(None, pattern=rf"^{POLICY_REF}$", max_length=200)
    """As in a job. None uses the job's."""
    model: str | None = Field(None, max_length=500)
    """None means the job's. Another base model is loaded next to it while the job runs."""

    @field_validator("tools", mode="before")
    @classmethod
    def _a_list_names_the_tools(cls, given: object) -> object:
        return SeatTools.read(given)


class SharedWith(Choice):
    """A seat of a game that another seat's policy plays. The policy is trained on both seats."""

    kind: Literal["shared"] = "shared"
    agent: AgentId
    """A seat with `Train`."""

    def __init__(self, agent: str | None = None, /, **settings: Any) -> None:
        super().__init__(**({} if agent is None else {"agent": agent}), **settings)

    # As in `Choice`: nested settings are validated without this.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


_GROUPS = ("group_size", "groups_per_step")
"""Settings shared by all seats of a job, because they play the same episodes."""

SeatSettings = Annotated[
    Train | SharedWith | Frozen | Scripted | Base | External | League | Replay, Field(discriminator="kind")
]
"""Who plays a seat."""

AgentName = Annotated[AgentId, Field(pattern=r"^[^@/\s]+$")]
"""An agent id that is valid in a policy reference: `job-ID/AGENT@40`."""


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


class EnvironmentRef(WireModel):
    """An environment, by its registered id; never code or data."""

    id: str = Field(min_length=1, max_length=200)
    kwargs: dict[str, JsonValue] = {}


class WeightedEnvironment(EnvironmentRef):
    """One of a job's several environments."""

    weight: float = Field(gt=0, le=1e6)
    """Its share of the groups is this, divided by the sum of all weights."""

    @property
    def ref(self) -> EnvironmentRef:
        """The environment without its weight."""
        return EnvironmentRef(id=self.id, kwargs=self.kwargs)


class TrainingSpec(UserSettings):
    """Settings of every kind of job: which model is trained, for how long, and what is kept."""

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
    optimizer: AdamW = AdamW()
    """The optimizer."""
    sampling: Sampling = Sampling()
    steps: int = Field(ge=1, le=10**9)
    seed: int = Field(0, ge=0, lt=2**63)
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
        return template_text(given)

    def rendered_by(self, job_id: str) -> str:
        """Return whose renderer its episodes use: the model's, or the job's own."""
        return job_id if self.chat_template else self.model

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
    def other_models(self) -> dict[str, str]:
        """The base models besides the job's own, each with the first agent whose policy uses it."""
        return {}

    def _refuse_endless_warmup(self, warmup_steps: int) -> None:
        if warmup_steps >= self.steps:
            self._refuse(
                f"warmup_steps must be below steps={self.steps}, or learning_rate is never reached; "
                "lower it, or train longer"
            )


class EvaluatedSpec(TrainingSpec):
    """Settings of jobs that can evaluate during training: all but a user's own loop."""

    evaluate: list[EvaluateEvery] = Field([], max_length=MOST_EVALUATIONS)
    """Evaluations during training, whose episodes are not trained on. The first of them decides which version
    is `@best`, unless `best_by` names another. In a game, each policy's own evaluations decide its
    `@best`."""
    best_by: str = Field("", max_length=500)
    """Decides which version is `@best`: the name of an evaluation, for its mean return, or `NAME/METRIC` for
    a metric of its environment (higher is better)."""

    @property
    def own_environments(self) -> dict[str, EnvironmentRef]:
        """The job's environments, if it plays, by the names used in metrics and evaluations."""
        return {}

    @property
    def evaluations(self) -> list[EvaluateEvery]:
        """`evaluate`, with one entry per environment of the job where an entry names none."""
        own = self.own_environments
        if len(own) < 2:
            return self.evaluate
        return [
            one
            if one.environment
            else one.model_copy(
                update={"environment": name, "name": f"{one.name}:{name}" if one.name else name}
            )
            for one in self.evaluate
            for name in ([""] if one.environment else own)
        ]

    @field_validator("evaluate", mode="before")
    @classmethod
    def _one_evaluation_is_a_list_of_one(cls, given: object) -> object:
        return given if isinstance(given, list | tuple) else [given]

    @model_validator(mode="after")
    def _its_evaluations_can_be_played(self) -> Self:
        own = self.own_environments
        for one in self.evaluations:
            if not own and not one.environment:
                raise ValueError("evaluate must name an environment, because this job plays none itself")
            if own and one.is_local and one.environment not in {ref.id for ref in own.values()}:
                raise ValueError(
                    "evaluate must name the job's own environment or one of the service, because the workers "
                    "that play this job have no other"
                )
            if not own and one.is_local != self.evaluate[0].is_local:
                raise ValueError(
                    "evaluate mixes environments of the script and of the service; use one kind in a job"
                )
            if one.environment == REMOTE_ID or "://" in one.environment:
                raise ValueError("evaluate must name an environment of the service, not an address")
            is_remote = self.environment_of(one).id == REMOTE_ID
            if is_remote and {"url", "token"} & set(one.env_kwargs):
                raise ValueError(
                    "evaluate uses the job's own environment server; leave url and token out of its "
                    "env_kwargs"
                )
        for one in self.evaluate if len(own) > 1 else ():
            if not one.environment and (one.patience is not None or one.target is not None):
                self._refuse(
                    f"evaluate has patience or target for several environments at once; name the one that "
                    f"may end the job: {', '.join(own)}"
                )
        names = [self.name_of(one) for one in self.evaluations]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"evaluate has two of the name {twice!r}; give each a name=")
        if self.best_by and self._named_by_best_by is None:
            self._refuse(
                f"best_by does not name an evaluation; write NAME or NAME/METRIC with one of "
                f"{', '.join(map(repr, names)) or 'those in evaluate'}"
            )
        return self

    @property
    def client_plays_evaluations(self) -> bool:
        """Whether the job plays no episodes but those of its evaluations, and a client plays them."""
        return not self.own_environments and any(one.is_local for one in self.evaluate)

    def agent_of(self, evaluation: EvaluateEvery) -> str:
        """Return the agent whose policy an evaluation measures; empty if the job trains one policy."""
        return evaluation.agent or self.trained_agents[0]

    def best_decided_by(self, agent: str = "") -> tuple[str, str] | None:
        """Return the evaluation that decides a policy's best version, and its metric.

        An empty metric is the mean return. None if no evaluation measures that policy.

        Args:
            agent: The policy's agent; empty if the job trains one policy.
        """
        own = [self.name_of(one) for one in self.evaluations if self.agent_of(one) == agent]
        named = self._named_by_best_by
        if named is not None and named[0] in own:
            return named
        return (own[0], "") if own else None

    @property
    def _named_by_best_by(self) -> tuple[str, str] | None:
        names = [self.name_of(one) for one in self.evaluations]
        if self.best_by in names:
            return self.best_by, ""
        # Names are ids that contain a slash, so the longest match wins.
        fitting = [name for name in names if self.best_by.startswith(f"{name}/")]
        name = max(fitting, key=len, default=None)
        return None if name is None else (name, self.best_by.removeprefix(f"{name}/"))

    def environment_of(self, evaluation: EvaluateEvery) -> EnvironmentRef:
        """Return the environment that an evaluation plays."""
        for name, own in self.own_environments.items():
            if evaluation.environment in ("", name):
                return EnvironmentRef(id=own.id, kwargs={**own.kwargs, **evaluation.env_kwargs})
        return EnvironmentRef(id=evaluation.environment, kwargs=evaluation.env_kwargs)

    def name_of(self, evaluation: EvaluateEvery) -> str:
        """Return the name of an evaluation in events and curves."""
        return evaluation.name or self.environment_of(evaluation).id


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


class JobSpec(PlayedSpec):
    """A complete RL training request: the service needs nothing else to run the job."""

    kind: Literal["rl"] = "rl"
    algorithm: Algorithm = GRPO()
    agents: dict[AgentName, SeatSettings] = Field({}, max_length=64)
    """Who plays each seat of a game, by agent id. Empty for an environment with one agent."""
    self_play: bool | League = False
    """One policy plays all seats of a game and learns from each. In a fraction of the groups its opponents
    are fixed anchors and past versions. True means `League()`. With `agents`, this applies to their
    policies."""
    updates: str = Field("all", pattern=r"^(all|alternate(:[1-9][0-9]{0,5})?|only:[^@/\s]+)$", max_length=120)
    """Which policies of a game's agents learn in a step: `all`; `alternate`, one after the other for one step
    each, or for ten with `alternate:10`; or `only:AGENT`. The others keep playing unchanged."""
    collapse_guard: bool | CollapseGuard = True
    """Whether games are watched for signs of collapse. Each sign causes a warning that names the last good
    version. True means `CollapseGuard()`."""
    group_rewards: bool = False
    """Whether the environment scores the episodes of a group together (`score_group`); set by the client or
    the service, whichever creates the environment first."""
    kl_metric_every: int | None = Field(None, ge=0)
    """Interval in steps at which the KL to the initial policy is estimated for a job without a KL penalty, as
    the metric `kl`; 0 disables it. None is 10, but 0 if a second model would have to be loaded for it."""
    shuffle_rewards: bool = False
    """A control experiment: permute the returns within each step, those of each environment and seat
    separately, so that nothing can be learned."""
    max_staleness: int = Field(0, ge=0, le=8)
    """How many versions may lie between the policy that sampled a token and the one that trains on it. 0 is
    synchronous: a step's episodes begin when the previous step is done. With more, episodes are played up to
    this many steps ahead, each completion by the newest version at the time of the request."""

    @model_validator(mode="after")
    def _its_length_penalty_fits_into_an_answer(self) -> Self:
        if self.algorithm.overlong_tokens > self.sampling.max_turn_tokens:
            raise ValueError(
                f"algorithm has overlong_tokens={self.algorithm.overlong_tokens}, but a completion ends at "
                f"sampling.max_turn_tokens={self.sampling.max_turn_tokens}; lower it, or allow longer "
                f"completions"
            )
        begins = self.sampling.max_turn_tokens - self.algorithm.overlong_tokens
        most = self.limits.max_episode_tokens
        if self.algorithm.overlong_tokens and most is not None and most <= begins:
            raise ValueError(
                f"algorithm has overlong_tokens={self.algorithm.overlong_tokens}, which lowers the reward "
                f"of completions beyond {begins} tokens, but limits.max_episode_tokens={most} ends them "
                f"before; "
                "raise one of the two, or lower sampling.max_turn_tokens"
            )
        return self

    @model_validator(mode="after")
    def _its_groups_can_be_paid_together(self) -> Self:
        if self.group_rewards and self.deterministic:
            self._refuse(
                "group_rewards cannot be combined with deterministic=True: episodes are sampled in "
                "lockstep, and those waiting for their group would block the others; leave out deterministic"
            )
        if self.group_rewards and self.rollout == "script":
            self._refuse("group_rewards needs workers that play whole groups; a script plays one by one")
        if self.group_rewards and self.algorithm.group_size < 2:
            self._refuse(
                "group_rewards needs groups: the environment has a score_group, but algorithm.group_size is "
                f"{self.algorithm.group_size}; raise it"
            )
        return self

    @model_validator(mode="after")
    def _its_rate_is_reached(self) -> Self:
        self._refuse_endless_warmup(self.algorithm.warmup_steps)
        return self

    @model_validator(mode="after")
    def _staleness_can_be_allowed_for(self) -> Self:
        if not self.max_staleness:
            return self
        if self.deterministic:
            raise ValueError(
                "max_staleness must be 0 with deterministic=True: which version samples would depend on "
                "the learner's speed; remove one of the two"
            )
        if self.algorithm.loss == "reinforce" and self.algorithm.importance_correction == "none":
            raise ValueError(
                "max_staleness must be 0 with loss='reinforce', which assumes that every token was sampled "
                "by the policy being trained; choose another loss, such as 'ppo' or 'importance_sampling', "
                "or set "
                "importance_correction"
            )
        return self

    @property
    def kl_measured_every(self) -> int:
        """Interval in steps at which the KL to the initial policy is estimated; 0 means never."""
        if self.algorithm.kl_coefficient:
            return 0
        if self.kl_metric_every is not None:
            return self.kl_metric_every
        return 0 if isinstance(self.adapter, FullParameters) and self.initial_policy else 10

    @model_validator(mode="after")
    def _its_kl_is_measured_once(self) -> Self:
        self._refuse_idle(
            "kl_metric_every",
            bool(self.algorithm.kl_coefficient),
            "algorithm.kl_coefficient=0; with a penalty, the metric kl already covers every step",
        )
        return self

    @property
    def guard(self) -> CollapseGuard | None:
        """The guard's settings; None if it is off."""
        if not self.plays_game or self.collapse_guard is False:
            return None
        return CollapseGuard() if self.collapse_guard is True else self.collapse_guard

    @model_validator(mode="after")
    def _there_is_something_to_guard(self) -> Self:
        self._refuse_idle("collapse_guard", not self.plays_game, "agents or self_play")
        return self

    @field_validator("self_play", mode="before")
    @classmethod
    def _true_is_the_usual_league(cls, given: object) -> object:
        return League() if given is True else given

    @model_validator(mode="after")
    def _opponents_can_be_drawn(self) -> Self:
        trained = ", ".join(self.trained_agents) or "none"
        if self.agents and not self.trained_agents:
            self._refuse("agents has no seat with Train, so no policy would be trained")
        for agent, seat in self.agents.items():
            if not isinstance(seat, League):
                continue
            if seat.of is not None and seat.of not in self.trained_agents:
                self._refuse(
                    f"agents has a League of {seat.of!r} at {agent!r}, which is not a seat with Train; "
                    f"these are: {trained}"
                )
        if isinstance(self.self_play, League):
            if self.replayed_jobs:
                self._refuse("self_play draws opponents, but a Replay is always the same; remove one of them")
            if self.self_play.of is not None:
                self._refuse("self_play plays every seat with its own policy's versions; leave `of` out")
            if self.agents and len(self.learning_seats) < 2:
                self._refuse(
                    "self_play needs two trained seats; with one, give the others a League in agents"
                )
        return self

    @model_validator(mode="after")
    def _seats_can_be_trained(self) -> Self:
        for agent, seat in self.agents.items():
            if not isinstance(seat, Train):
                continue
            algorithm = seat.algorithm
            for name in _GROUPS:
                if algorithm is None:
                    break
                own, jobs = getattr(algorithm, name), getattr(self.algorithm, name)
                if own not in (type(algorithm).model_fields[name].default, jobs):
                    self._refuse(
                        f"agents has {agent!r} with algorithm.{name}={own}, and the job {jobs}: all seats "
                        f"play the same episodes; set it in the job's algorithm"
                    )
            self._refuse_unequal_rounds(agent)
        return self

    @model_validator(mode="after")
    def _several_models_can_be_served(self) -> Self:
        for model, agent in self.other_models.items():
            if self.deterministic:
                self._refuse(
                    f"deterministic cannot be True while agents has {agent!r} with model={model!r} and the "
                    f"job {self.model!r}: lockstep needs a single base model; leave out one of them"
                )
            if self.chat_template:
                self._refuse(
                    f"chat_template cannot be set while agents has {agent!r} with model={model!r}, which "
                    f"has its own template; leave out one of them"
                )
        return self

    def _refuse_unequal_rounds(self, agent: str) -> None:
        algorithm, sampling = self.for_agent(agent).algorithm, self.for_agent(agent).sampling
        if algorithm.minibatches > algorithm.groups_per_step:
            self._refuse(f"agents has {agent!r} with more minibatches than the job's groups_per_step")
        if algorithm.dynamic_sampling_rounds != self.algorithm.dynamic_sampling_rounds:
            self._refuse(
                f"agents has {agent!r} with dynamic_sampling_rounds different from the job's; set them in "
                f"both, or "
                "in neither"
            )
        self._refuse_unequal_replacements(agent)
        if algorithm.compares_siblings and algorithm.group_size < 2:
            self._refuse(
                f"agents has {agent!r} with an algorithm that compares episodes with their group, but the "
                f"job's groups have one episode; raise algorithm.group_size"
            )
        if algorithm.overlong_tokens > sampling.max_turn_tokens:
            self._refuse(f"agents has {agent!r} with overlong_tokens above its max_turn_tokens; lower them")
        if self.max_staleness and algorithm.loss == "reinforce" and algorithm.importance_correction == "none":
            self._refuse(
                f"agents has {agent!r} with loss='reinforce', which needs max_staleness=0 or an "
                "importance_correction"
            )
        if algorithm.warmup_steps >= self.steps:
            self._refuse(f"agents has {agent!r} with warmup_steps not below steps={self.steps}; lower it")

    def _refuse_unequal_replacements(self, agent: str) -> None:
        """Whether a group taught nothing is decided once, for all of its seats."""
        if not self.algorithm.dynamic_sampling_rounds:
            return
        own = self.for_agent(agent)
        names = ["credit", "discount", "overlong_tokens", "overlong_penalty"]
        for name in names:
            theirs, jobs = (getattr(one, name, None) for one in (own.algorithm, self.algorithm))
            if theirs != jobs:
                self._refuse(
                    f"agents has {agent!r} with algorithm.{name}={theirs!r}, and the job {jobs!r}: "
                    f"dynamic_sampling_rounds replaces a group for all seats; use the same {name}"
                )
        if own.algorithm.overlong_tokens and own.sampling.max_turn_tokens != self.sampling.max_turn_tokens:
            self._refuse(
                f"agents has {agent!r} with a sampling.max_turn_tokens different from the job's, which "
                f"overlong_tokens counts from, while dynamic_sampling_rounds replaces a group for all seats; "
                f"use the same"
            )

    @model_validator(mode="after")
    def _evaluations_have_seats(self) -> Self:
        for one in self.evaluate:
            if not self.plays_game:
                if one.agent or one.against is not None:
                    self._refuse("evaluate has `agent` or `against`, which only take effect with agents")
                continue
            if one.environment not in ("", self.environment.id):
                self._refuse("evaluate cannot name another environment if the agents of a game are trained")
            if one.agent and self.agents and one.agent not in self.trained_agents:
                self._refuse(
                    f"evaluate names the agent {one.agent!r}, which is not a seat with Train; these are: "
                    f"{', '.join(self.trained_agents)}"
                )
        return self

    @model_validator(mode="after")
    def _a_failed_game_trains_nothing(self) -> Self:
        if self.plays_game and self.on_failure == "keep":
            self._refuse(
                "on_failure cannot be 'keep' with agents or self_play: a failure at one seat ends the game "
                "for all, so the others' rewards are meaningless; choose 'drop' or 'retry:N'"
            )
        return self

    @model_validator(mode="after")
    def _tools_can_be_called(self) -> Self:
        with_tools = next((agent for agent in self.trained_agents if self.tools_of(agent) is not None), None)
        if with_tools is None:
            return self
        if self.rollout == "script":
            self._refuse(f"agents has {with_tools!r} with tools, which a script calls itself; leave them out")
        if self.environment.id == REMOTE_ID or "://" in self.environment.id:
            self._refuse(f"agents has {with_tools!r} with tools, which a game behind a server does not offer")
        return self

    @model_validator(mode="after")
    def _external_models_can_be_asked(self) -> Self:
        models = self.external_models
        if models and self.deterministic:
            self._refuse(
                "deterministic cannot be True with a tg.opponents.External, which answers differently each "
                "time; leave out one of them"
            )
        if models and (self.environment.id == REMOTE_ID or "://" in self.environment.id):
            self._refuse(
                "agents cannot have a tg.opponents.External in a game on a server; use the game from an "
                "installed pack"
            )
        most = self._seconds_of_external_answers
        if models and most >= self.limits.step_timeout_seconds:
            names = " and ".join(dict.fromkeys(repr(one.model) for one in models))
            self._refuse(
                f"limits has step_timeout_seconds={self.limits.step_timeout_seconds:g}, which must be above "
                f"the {most:g} s that the External players ({names}) of one game may take for their "
                f"answers: all of them may answer within a step; raise it or lower their timeout_seconds"
            )
        return self

    @property
    def _seconds_of_external_answers(self) -> float:
        """The most that one answer of each external player of a game may take together."""

        def longest(players: Iterable[object]) -> float:
            return max((one.timeout_seconds for one in players if isinstance(one, External)), default=0.0)

        others = max(len(self.agents) - 1, 1)
        of_seats = sum(
            longest(seat.anchors or () if isinstance(seat, League) else [seat])
            for seat in self.agents.values()
        )
        if isinstance(self.self_play, League):
            of_seats = max(of_seats, others * longest(self.self_play.anchors or ()))
        return max(of_seats, others * longest(one.against for one in self.evaluate))

    @model_validator(mode="after")
    def _recorded_games_are_played_again(self) -> Self:
        if self.replayed_jobs and self.rollout != "server":
            self._refuse("agents has a Replay, whose record is stored in the service; leave out rollout")
        if self.replayed_jobs and (self.environment.id == REMOTE_ID or "://" in self.environment.id):
            self._refuse(
                "agents cannot have a Replay in a game on a server; use the game from an installed pack"
            )
        if self.replayed_jobs and self.algorithm.dynamic_sampling_rounds:
            self._refuse("agents has a Replay, whose groups are fixed; leave out dynamic_sampling_rounds")
        return self

    @model_validator(mode="after")
    def _updates_take_effect(self) -> Self:
        chosen = self.updates
        if chosen == "all":
            return self
        several = len(self.trained_agents) > 1 or (isinstance(self.self_play, League) and not self.agents)
        if not several or not self.plays_game:
            self._refuse("updates only takes effect if several policies are trained; leave it out")
        only = chosen.partition(":")[2] if chosen.startswith("only:") else None
        if only is not None and only not in self.trained_agents:
            self._refuse(
                f"updates names {only!r}, which is not a seat with Train; these are: "
                f"{', '.join(self.trained_agents)}"
            )
        return self

    def updated_at(self, step: int) -> tuple[str, ...]:
        """Return the agents whose policies learn in a train step."""
        agents, (chosen, _, detail) = self.trained_agents, self.updates.partition(":")
        if chosen == "alternate":
            return (agents[(step - 1) // int(detail or 1) % len(agents)],)
        return (detail,) if chosen == "only" else agents

    @model_validator(mode="after")
    def _seats_can_be_played(self) -> Self:
        for agent, seat in self.agents.items():
            if isinstance(seat, SharedWith) and not isinstance(self.agents.get(seat.agent), Train):
                trained = ", ".join(self.trained_agents) or "none"
                self._refuse(
                    f"agents has {agent!r} shared with {seat.agent!r}, which is not a seat with Train; "
                    f"these are: {trained}"
                )
        if self.plays_game and self.environments:
            self._refuse(
                f"environments cannot be {self.environments!r:.200} with agents; leave out one of them"
            )
        return self

    @property
    def trained_agents(self) -> tuple[str, ...]:
        """The agents with their own policy; the agent of a single policy is ""."""
        if not self.agents:
            return ("",)
        return tuple(agent for agent, seat in self.agents.items() if isinstance(seat, Train))

    @property
    def other_models(self) -> dict[str, str]:
        """The base models besides the job's own, each with the first agent whose policy uses it."""
        own = {agent: self.for_agent(agent).model for agent in reversed(self.trained_agents)}
        return {model: agent for agent, model in own.items() if model != self.model}

    @property
    def learning_seats(self) -> tuple[str, ...]:
        """The agents whose seats are trained on: those with their own or a shared policy."""
        return tuple(agent for agent, seat in self.agents.items() if isinstance(seat, Train | SharedWith))

    def policy_at(self, agent: str) -> str:
        """Return whose policy plays a trained seat."""
        seat = self.agents[agent]
        return seat.agent if isinstance(seat, SharedWith) else agent

    @property
    def leagues(self) -> list[League]:
        """All leagues that the job draws opponents from."""
        own = [self.self_play] if isinstance(self.self_play, League) else []
        return own + [seat for seat in self.agents.values() if isinstance(seat, League)]

    def seated(self, agents: Sequence[str], offered: Sequence[str]) -> Self:
        """Return the job with game-dependent settings: its agents in self-play, and default anchors.

        Args:
            agents: All agents of the game.
            offered: The names of the players that it offers.
        """
        changes: dict[str, Any] = {}
        if isinstance(self.self_play, League):
            changes["self_play"] = _with_anchors(self.self_play, offered)
            if not self.agents:
                first, *others = agents
                shared = {agent: SharedWith(agent=first) for agent in others}
                changes["agents"] = {first: Train(), **shared}
        seats: dict[str, Any] = changes.get("agents", self.agents)
        if any(isinstance(seat, League) for seat in seats.values()):
            changes["agents"] = {
                agent: _with_anchors(seat, offered) if isinstance(seat, League) else seat
                for agent, seat in seats.items()
            }
        if self.evaluate:
            usual: FixedPlayer = Scripted(name="random") if "random" in offered else Base()
            changes["evaluate"] = [
                one if one.against is not None else one.model_copy(update={"against": usual})
                for one in self.evaluate
            ]
        if not changes:
            return self
        # Checked again: the game's agent ids may be invalid as names of policies.
        return type(self).model_validate(self.model_copy(update=changes).model_dump())

    @property
    def beginnings(self) -> dict[str, str]:
        """The starting point of each trained policy, by agent.

        Policies that start from the base model are left out.
        """
        own = {agent: self.for_agent(agent).initial_policy for agent in self.trained_agents}
        return {agent: policy for agent, policy in own.items() if policy}

    def tools_of(self, agent: str) -> SeatTools | None:
        """Return the tools that the policy of one of the `trained_agents` may call before it moves."""
        seat = self.agents.get(agent)
        return seat.tools if isinstance(seat, Train) else None

    @property
    def replayed_jobs(self) -> dict[str, str]:
        """The jobs whose recorded actions play seats, by agent."""
        return {agent: seat.job for agent, seat in self.agents.items() if isinstance(seat, Replay)}

    @property
    def opponent_policies(self) -> list[str]:
        """References to the policies of other jobs that play seats."""
        return list(dict.fromkeys(one.policy for one in self._fixed_players if isinstance(one, Frozen)))

    @property
    def external_models(self) -> list[External]:
        """The external models that play seats."""
        return [one for one in self._fixed_players if isinstance(one, External)]

    @property
    def _fixed_players(self) -> list[SeatSettings | FixedPlayer]:
        fixed: list[SeatSettings | FixedPlayer] = list(self.agents.values())
        fixed += [one.against for one in self.evaluate if one.against is not None]
        return fixed + [anchor for league in self.leagues for anchor in league.anchors or ()]

    @property
    def plays_game(self) -> bool:
        """Whether the job trains the agents of a game, rather than in an environment with one agent."""
        return bool(self.agents) or isinstance(self.self_play, League)

    def for_agent(self, agent: str) -> Self:
        """Return the settings that apply to the policy of one of the `trained_agents`."""
        seat = self.agents.get(agent)
        if not isinstance(seat, Train):
            return self
        changes: dict[str, Any] = {
            name: value
            for name in ("model", "adapter", "system_prompt", "sampling", "initial_policy")
            if (value := getattr(seat, name)) is not None
        }
        if seat.algorithm is not None:
            groups = {name: getattr(self.algorithm, name) for name in _GROUPS}
            changes["algorithm"] = seat.algorithm.model_copy(update=groups)
        return self.model_copy(update=changes) if changes else self

    @property
    def episodes_per_step(self) -> int:
        """How many episodes one train step asks for."""
        return self.algorithm.group_size * self.algorithm.groups_per_step

    @property
    def most_episodes_per_step(self) -> int:
        """The most episodes of one train step, if each round of dynamic sampling replaces every group."""
        return self.episodes_per_step * (1 + self.algorithm.dynamic_sampling_rounds)


def _with_anchors(league: League, offered: Sequence[str]) -> League:
    """Return the league with default anchors if it names none: the random player or the base model."""
    if league.anchors is not None or not league.anchor_share:
        return league
    anchor = Scripted(name="random") if "random" in offered else Base()
    return league.model_copy(update={"anchors": [anchor]})
