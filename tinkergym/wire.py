"""What client and service say to each other, version 1: the `/v1` of every path.

One schema for both sides: what is not written here is refused, and what is written here takes effect.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from tinkergym.loop.trajectory import MOST_TOKENS, MOST_TURNS, Trajectory
from tinkergym.wire_algorithms import GRPO as GRPO
from tinkergym.wire_algorithms import Algorithm as Algorithm
from tinkergym.wire_model import MOST_EPISODES, WrittenByPeople
from tinkergym.wire_model import MOST_RESULTS as MOST_RESULTS
from tinkergym.wire_model import Choice as Choice
from tinkergym.wire_model import WireModel as WireModel
from tinkergym.wire_structured import JsonSchema as JsonSchema
from tinkergym.wire_structured import Regex as Regex
from tinkergym.wire_structured import Structured as Structured

# --- what a user chooses -------------------------------------------------------------------------------


LEAST_TEMPERATURE = 1e-3
"""Logits divided by much less are not finite any more, as if the policy had diverged."""

MOST_TEMPERATURE = 10

LONGEST_SECONDS = 1e9
"""Thirty years; clocks and threads cannot wait for much more."""


MOST_JOBS_LISTED = 500
"""Jobs that the service lists at once."""


class LoRA(Choice):
    """Train low-rank adapters beside every linear layer of the decoder (arXiv:2106.09685)."""

    kind: Literal["lora"] = "lora"
    rank: int = Field(8, ge=1, le=512)
    alpha: float = Field(16.0, gt=0, le=1e6)
    """The adapter's output is scaled by `alpha / rank`."""


class FullParameters(Choice):
    """Train every parameter of the model."""

    kind: Literal["full"] = "full"


Adapter = Annotated[LoRA | FullParameters, Field(discriminator="kind")]


class Sampling(Choice):
    """How the policy's answers are drawn during training."""

    temperature: float = Field(1.0, ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE)
    max_turn_tokens: int = Field(64, ge=1)
    """Sampled tokens in one answer at the most."""


class Limits(Choice):
    """Where an episode is cut off."""

    max_turns: int = Field(64, ge=1)
    max_episode_tokens: int | None = Field(None, ge=1)
    """Sampled tokens of all turns together; None leaves it to the context."""
    max_context_tokens: int | None = Field(None, ge=1)
    """Tokens of a prompt and its answer together; None takes the model's context, which is never exceeded."""
    step_timeout_seconds: float = Field(60.0, gt=0, le=LONGEST_SECONDS)
    """For one `reset` or `step` of the environment."""
    episode_timeout_seconds: float = Field(3600.0, gt=0, le=LONGEST_SECONDS)


Reasoning = Literal["keep", "drop"]
"""What later turns see of the `<think>...</think>` of earlier answers: all of it, or nothing."""


ExecutorName = Literal["thread", "process"]
"""Where environments live while they are played: each in a thread of the worker, or a process of its own."""


class EnvironmentRef(WireModel):
    """Which environment, by its registered id; never code, never data."""

    id: str = Field(min_length=1, max_length=200)
    kwargs: dict[str, JsonValue] = {}


class TrainingSpec(WrittenByPeople):
    """What every kind of job says: which model is trained, how long, and what is kept of it."""

    model: str = Field("nano", min_length=1, max_length=500)
    """A name that the service offers, a model directory on its machine, or a Hugging Face hub id."""
    adapter: Adapter = LoRA()
    initial_policy: str = Field("", pattern=r"^([^@\s]+(@[0-9]+)?)?$", max_length=200)
    """`job-...@version`: begin with what that job trained, on the same model with the same adapter. Without
    a version, its newest checkpoint; the service writes down which that was.
    """
    sampling: Sampling = Sampling()
    steps: int = Field(ge=1, le=10**9)
    seed: int = Field(0, ge=0, lt=2**63)
    checkpoint_every: int = Field(10, ge=1)
    """Steps between two checkpoints; the last step always makes one."""
    keep_checkpoints: int = Field(3, ge=1)
    name: str = Field("", max_length=200)
    """For people, to find the job again in a list."""

    def _refuse_endless_warmup(self, warmup_steps: int) -> None:
        if warmup_steps >= self.steps:
            self._refuse(
                f"warmup_steps must be below steps={self.steps}, or learning_rate is never reached; "
                "lower it, or train longer"
            )


class PlayedSpec(TrainingSpec):
    """What jobs say whose policy plays episodes while it is trained."""

    environment: EnvironmentRef
    limits: Limits = Limits()
    rollout: Literal["server", "client", "script"] = "server"
    """Who plays the episodes: workers of the service, a worker in the client, or the user's own loop, one
    by one.
    """
    system_prompt: str | None = None
    """Stands before the first observation; None takes the environment's own metadata["system_prompt"], if
    any.
    """
    environment_prompt: str | None = None
    """The environment's own prompt, written down by whoever makes the environment first, the client or the
    service: so the policy can act like in training where nobody has the environment.
    """
    reasoning: Reasoning = "keep"
    """Whether later turns see the `<think>...</think>` of earlier answers; where it is dropped, a new segment
    begins.
    """
    executor: ExecutorName = "thread"
    """Where environments live: `process` is for those that crash, hold the interpreter, or compute much."""
    deterministic: bool = False
    """Sample a step's episodes in lockstep, so that the same seed gives the same bits; slower."""
    on_failure: str = Field("drop", pattern=r"^(drop|keep|retry:[1-9][0-9]?)$")
    """What becomes of an episode that failed: `drop` leaves it out of learning, `keep` learns from what it
    earned until then, `retry:N` plays it again up to N times and then drops it.
    """
    max_failed_fraction: float = Field(0.5, ge=0, le=1)
    """The job fails when more than this share of a step's episodes failed; below it they are left out and
    counted.
    """
    warn_failed_fraction: float = Field(0.1, ge=0, le=1)
    """A job that lost more than this share of all its episodes ends with the warning `episodes_lost`."""
    client_timeout_seconds: float = Field(30.0, gt=0, le=LONGEST_SECONDS)
    """After this much silence of the client's workers the job becomes `waiting_for_client`."""
    parity_threshold: float | None = Field(None, gt=0)
    """Largest mean |learner - sampling| logprob difference, in nats, before the job stops. None is 0.001, and
    0.02 where the service computes in bfloat16.
    """

    @model_validator(mode="after")
    def _its_player_can_do_so(self) -> Self:
        if self.executor == "process" and (self.deterministic or self.rollout == "script"):
            raise ValueError(
                "executor cannot be 'process' with deterministic=True or where a script plays; "
                "choose 'thread', or leave the other setting"
            )
        if self.retries and self.rollout == "script":
            raise ValueError(
                "on_failure cannot be 'retry' where a script plays; catch the error in the script, "
                "or choose 'drop' or 'keep'"
            )
        self._refuse_idle(
            "client_timeout_seconds", self.rollout == "server", "rollout='client' or where a script plays"
        )
        return self

    @property
    def effective_prompt(self) -> str | None:
        """The system prompt that training uses."""
        return self.environment_prompt if self.system_prompt is None else self.system_prompt

    @property
    def retries(self) -> int:
        """How often a failed episode is played again."""
        return int(self.on_failure.partition(":")[2] or 0)


class JobSpec(PlayedSpec):
    """One RL training request, complete: what the service runs is this and nothing else."""

    kind: Literal["rl"] = "rl"
    algorithm: Algorithm = GRPO()
    shuffle_rewards: bool = False
    """A control experiment: permute the returns within each step, so that nothing can be learned."""
    max_staleness: int = Field(0, ge=0, le=8)
    """How many versions may lie between the policy that sampled a token and the one that learns from it. 0 is
    strict: a step's episodes begin when the step before it is done. With more, they are played while up to so
    many steps before theirs are learned from, each answer by the version that is newest when it is asked for.
    """

    @model_validator(mode="after")
    def _its_length_penalty_fits_into_an_answer(self) -> Self:
        if self.algorithm.overlong_tokens > self.sampling.max_turn_tokens:
            raise ValueError(
                f"algorithm has overlong_tokens={self.algorithm.overlong_tokens}, but an answer ends at "
                f"sampling.max_turn_tokens={self.sampling.max_turn_tokens}; lower it, or allow longer answers"
            )
        begins = self.sampling.max_turn_tokens - self.algorithm.overlong_tokens
        most = self.limits.max_episode_tokens
        if self.algorithm.overlong_tokens and most is not None and most <= begins:
            raise ValueError(
                f"algorithm has overlong_tokens={self.algorithm.overlong_tokens}, which lowers rewards of "
                f"answers beyond {begins} tokens, but limits.max_episode_tokens={most} ends them before; "
                "raise one of the two, or lower sampling.max_turn_tokens"
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
                "max_staleness must be 0 with deterministic=True: which version answers would depend on how "
                "fast the learner is; leave one of the two"
            )
        if self.algorithm.loss == "reinforce" and self.algorithm.importance_correction == "none":
            raise ValueError(
                "max_staleness must be 0 with loss='reinforce', which takes every token for one of the "
                "policy that learns; choose another loss, such as 'ppo' or 'importance_sampling', or set "
                "importance_correction"
            )
        return self

    @property
    def episodes_per_step(self) -> int:
        """How many episodes one train step asks for."""
        return self.algorithm.group_size * self.algorithm.groups_per_step

    @property
    def most_episodes_per_step(self) -> int:
        """How many one train step may come to, if each round of dynamic sampling replaces every group."""
        return self.episodes_per_step * (1 + self.algorithm.dynamic_sampling_rounds)


# --- jobs and their events -----------------------------------------------------------------------------


class JobState(StrEnum):
    """Where a job is in its life. The last three are final."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    WAITING_FOR_CLIENT = "waiting_for_client"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the job will never leave this state."""
        return self in {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}


class ErrorView(WireModel):
    """A `TinkerGymError` on the wire."""

    type: str
    message: str
    hint: str = ""
    field: str = ""


class StateEvent(WireModel):
    """The job entered a state."""

    type: Literal["state"] = "state"
    state: JobState
    reason: str = ""
    error: ErrorView | None = None
    attempt: int = 0


class StepEvent(WireModel):
    """One train step is done."""

    type: Literal["step"] = "step"
    step: int
    """1 for the first; after a resume, steps since the last checkpoint appear again with the same numbers."""
    steps: int
    policy_version: int
    reward_mean: float | None = None
    """Of the completed episodes; None when there was none, and so for the next two."""
    reward_std: float | None = None
    loss: float | None
    episodes: int = 0
    failed_episodes: int = 0
    stop_reasons: dict[str, int] = {}
    sampled_tokens: int = 0
    turns: int = 0
    records: int | None = None
    """Of written data; None in jobs whose policy plays."""
    trained_tokens: int = 0
    """Tokens that were learned from, each counted once: of the records, or of what the policy sampled."""
    tokens_per_second: float
    """Sampled tokens divided by the step's seconds; all tokens of the records where nothing is sampled."""
    step_seconds: float
    sampling_seconds: float
    """While the engine worked."""
    learning_seconds: float
    """While the learner worked."""
    seconds_left: float
    metrics: dict[str, float] = Field({}, max_length=1000)
    """Everything else by name: grad_norm, learning_rate, clip_fraction, zero_variance_groups, parity_max,
    env/...
    """


class EpisodeEvent(WireModel):
    """One episode of a step, to read."""

    type: Literal["episode"] = "episode"
    step: int
    episode_id: str
    seed: int
    stop_reason: str
    episode_return: float
    transcript: list[tuple[str, str]] = Field(max_length=2 * MOST_TURNS + 2)
    """(role, text) in order."""


class CheckpointEvent(WireModel):
    """A checkpoint was written and can be resumed from, downloaded or played."""

    type: Literal["checkpoint"] = "checkpoint"
    step: int
    policy_version: int
    path: str
    """On the service's machine."""
    sha256: str
    """Of the adapter's or the model's weights file."""


class WarningEvent(WireModel):
    """Something failed that the job survived: named, counted, with the traceback where there is one."""

    type: Literal["warning"] = "warning"
    name: str
    message: str
    count: int = 1
    step: int = 0


EventBody = Annotated[
    StateEvent | StepEvent | EpisodeEvent | CheckpointEvent | WarningEvent, Field(discriminator="type")
]


class Event(WireModel):
    """One line of a job's log; `seq` is 1, 2, 3, ... within the job and never reused."""

    seq: int
    job_id: str
    time: float
    body: EventBody


class CheckpointView(WireModel):
    """A checkpoint that is still there."""

    step: int
    policy_version: int
    path: str
    sha256: str
    files: dict[str, int]
    """Name to size in bytes."""


# --- rollout workers -----------------------------------------------------------------------------------


class EpisodeRequest(WireModel):
    """One episode to play, leased to one worker."""

    job_id: str
    episode_id: str
    """`{job_id}:{step}:{index}`; the same on every re-issue, so a result counts once."""
    step: int
    index: int
    group: int
    environment: EnvironmentRef
    seed: int
    """For `env.reset(seed=...)`; equal within a group."""
    task_index: int | None = None
    sampling_seed: int
    """Turn k samples with seed `sampling_seed + k`."""
    model: str
    """Whose renderer turns the messages into ids."""
    policy: str
    """Policy id, to be put into `SampleRequest.policy`."""
    policy_version: int
    """The only one that may answer; with `max_staleness` above 0 the oldest, and each answer is asked of the
    newest.
    """
    max_staleness: int = Field(0, ge=0)
    """Of the job."""
    sampling: Sampling
    limits: Limits
    system_prompt: str | None = None
    reasoning: Reasoning = "keep"
    executor: ExecutorName = "thread"
    retries: int = Field(0, ge=0)
    """How often the worker plays it again after a failure."""
    lease_id: str
    lease_seconds: float


class LeaseRequest(WireModel):
    """A worker asks for episodes and says that it lives; it waits up to `wait_seconds` for some."""

    worker_id: str = Field(min_length=1, max_length=100)
    max_episodes: int = Field(ge=0, le=MOST_EPISODES)
    """0 only renews."""
    wait_seconds: float = Field(10.0, ge=0, le=60)
    renew: list[Annotated[str, Field(max_length=200)]] = Field([], max_length=MOST_EPISODES)
    """Lease ids of the episodes still being played."""
    leaving: bool = False
    """The worker ends: its leases other than those in `renew` go to others, and it gets no more episodes."""


class LeaseReply(WireModel):
    """The episodes, and whether more can come."""

    episodes: list[EpisodeRequest] = Field(max_length=MOST_EPISODES)
    lost: list[str] = Field([], max_length=MOST_EPISODES)
    """Lease ids from `renew` that are void: stop playing these."""
    job_state: JobState
    held_seconds: float = 0.0
    """If above 0, all open episodes are leased to workers that fell silent, for at most so long."""


class EpisodeResult(WireModel):
    """What became of an episode."""

    episode_id: str
    lease_id: str
    trajectory: Trajectory


class SubmitRequest(WireModel):
    """Results handed in; answered only when they are durable."""

    worker_id: str = Field(min_length=1, max_length=100)
    results: list[EpisodeResult] = Field(max_length=MOST_RESULTS)


class SubmitReply(WireModel):
    """One verdict per result, in order: `accepted`, `duplicate` or `stale` (the lease was lost)."""

    verdicts: list[Literal["accepted", "duplicate", "stale"]] = Field(max_length=MOST_RESULTS)


# --- sampling ------------------------------------------------------------------------------------------


class Cut(WireModel):
    """From which part of its distribution a token is drawn; as it stands, from all of it.

    The distribution is the one at the request's temperature. `top_k` comes first, then `top_p`, of what
    remains. The logprobs that come back are those of what remains at the end, so no job trains on them.
    """

    top_p: float = Field(1.0, gt=0, le=1)
    """Only the fewest likeliest tokens that have so much of the probability together; 1 is all."""
    top_k: int = Field(0, ge=0)
    """Only so many of the likeliest tokens; 0 is all. Of equally likely ones those with lower ids."""

    @property
    def is_cut(self) -> bool:
        """Whether some tokens are left out."""
        return self.top_p < 1 or self.top_k > 0


class SampleRequest(Cut):
    """Tokens wanted after a prompt of token ids."""

    request_id: str = Field(min_length=1, max_length=200)
    policy: str
    """A job id (the policy it trains) or a model's name."""
    policy_version: int | None = None
    """None takes the newest published one; 0 is the untrained model."""
    prompt_ids: list[int] = Field(min_length=1, max_length=MOST_TOKENS)
    max_tokens: int = Field(ge=1)
    temperature: float = Field(1.0, ge=0, le=MOST_TEMPERATURE)
    """0 takes the likeliest token, whatever `top_p` and `top_k`; its logprobs are those of temperature 1, of
    the whole distribution. Else at least 0.001.
    """
    seed: int = Field(0, ge=0, lt=2**64)
    stop_ids: list[int] = Field([], max_length=1024)
    """Sampling ends with the first of these, which is part of the answer."""
    session_id: str = ""
    """Requests of one episode share it, so that the next turn finds its cache; empty means no next turn."""
    structured: Structured | None = None
    """What the answer must look like; only with `engine="vllm"`, never in training, see `docs/engines.md`."""

    @model_validator(mode="after")
    def _has_a_temperature_to_divide_by(self) -> Self:
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise ValueError(
                "temperature is too small to divide by; "
                f"take 0 for the likeliest token, or at least {LEAST_TEMPERATURE}"
            )
        return self


class Completion(WireModel):
    """The tokens sampled for one request."""

    request_id: str
    token_ids: list[int] = Field(max_length=MOST_TOKENS)
    sampling_logprobs: list[float] = Field(max_length=MOST_TOKENS)
    """In nats, of the distribution that was drawn from: at the request's temperature, among what its `top_k`,
    `top_p` and `structured` leave. Same length as `token_ids`.
    """
    finish_reason: Literal["stop", "length"]
    policy_version: int


class SampleFailure(WireModel):
    """A request for tokens that was not fulfilled."""

    request_id: str
    error: ErrorView


class SampleBatch(WireModel):
    """The body of `POST /v1/sample`; answered by one JSON line per request, in the order they finish."""

    requests: list[SampleRequest] = Field(min_length=1, max_length=4096)


# --- models --------------------------------------------------------------------------------------------


class RendererBundle(WireModel):
    """What a client needs to turn messages into a model's token ids, and back."""

    model: str
    tokenizer_json: str
    chat_template: str
    special_tokens: dict[str, str] = {}
    """bos_token, eos_token, ... as the chat template names them."""
    stop_ids: list[int] = Field(max_length=1024)
    """Token ids that end an answer."""
    context_length: int
    sha256: str


class EnvironmentView(WireModel):
    """An environment that the service can play itself, for `train` and evaluations that it plays."""

    id: str
    distribution: str
    """The pack's, as pip calls it."""
    version: str
    """Of the pack."""


class ModelView(WireModel):
    """A model that the service offers."""

    name: str
    parameters: int | None = None
    context_length: int
    description: str = ""


class HealthView(WireModel):
    """Whether the service answers, and what it still waits for."""

    status: Literal["ok", "degraded"]
    version: str
    waiting_for: list[str] = Field([], max_length=1000)
    """Parts that are not there at the moment: `scheduler`, `pool:nano`, ..."""
    missing_since: dict[str, float] = {}
    """For each of them the Unix time, in seconds, since when."""
