"""The low-level API: a policy trained by a user's own loop, with numbered calls."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from tinkergym.policy_losses import KLEstimator, LossName
from tinkergym.schema.events import ErrorView, JobState
from tinkergym.schema.ids import DEFINITE_POLICY_REF
from tinkergym.schema.jobs.parts import LEAST_TEMPERATURE, MOST_TEMPERATURE
from tinkergym.schema.model import UserSettings, WireModel
from tinkergym.schema.optimizer import MAX_GRAD_NORM, WEIGHT_DECAY
from tinkergym.trajectory.content_parts import MOST_PARTS, ImageSpan, misplaced_image
from tinkergym.trajectory.trajectory import LARGEST_REWARD, MOST_TOKENS, Logprob, TokenId

MOST_SEQUENCES = 4096
"""The most sequences in one call."""
Weight = Annotated[float, Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD)]
"""An advantage, or the weight of a token."""
MOST_CALLS_AHEAD = 256
"""The most calls of one policy that are stored and not yet done."""


class TokenSequence(WireModel):
    """Token ids, and which of them to train on; all lists have the same length T."""

    token_ids: list[TokenId] = Field(min_length=2, max_length=MOST_TOKENS)
    loss_mask: list[bool] | None = Field(None, max_length=MOST_TOKENS)
    """True on the tokens to train on, never on the first. None means all but the first."""
    sampling_logprobs: list[Logprob | None] | None = Field(None, max_length=MOST_TOKENS)
    """Logprobs of the policy that sampled, in nats at `temperature`, as completions report them.
    Policy-gradient losses need one wherever `loss_mask` is True."""
    advantage: Weight | Annotated[list[Weight], Field(max_length=MOST_TOKENS)] = 1.0
    """One for the sequence or one per token. For `cross_entropy` it is a weight."""
    temperature: float = Field(1.0, ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE)
    reference_logprobs: list[Logprob] | None = Field(None, max_length=MOST_TOKENS)
    """One per token with `loss_mask` True, for `kl_coefficient`."""
    images: list[ImageSpan] = Field([], max_length=MOST_PARTS)
    """The images' positions, in order; on tokens that are not trained on. The files are sent first."""

    @model_validator(mode="after")
    def _images_stand_on_given_tokens(self) -> Self:
        if self.images and (wrong := misplaced_image(self.images, self.trained)):
            raise ValueError(wrong)
        return self

    @property
    def trained(self) -> list[bool]:
        """The effective mask: `loss_mask`, or all tokens but the first."""
        return [False] + [True] * (len(self.token_ids) - 1) if self.loss_mask is None else self.loss_mask


class ForwardBackward(UserSettings):
    """Add the gradient of a loss to the gradient for the next `optim_step`."""

    op: Literal["forward_backward"] = "forward_backward"
    sequences: list[TokenSequence] = Field(min_length=1, max_length=MOST_SEQUENCES)
    loss: Literal[LossName, "cross_entropy", "linear"] = "cross_entropy"
    """`linear` is the sum of minus `advantage` times logprob. It implements custom losses: the client
    computes the gradient with respect to the logprobs and sends it with the sign reversed."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    constant_tokens: int = Field(1, ge=1)
    """The divisor of each sequence's sum with `aggregation="constant"`."""
    clip_low: float = Field(0.2, gt=0)
    clip_high: float = Field(0.2, gt=0)
    entropy_coefficient: float = Field(0.0, ge=0)
    kl_coefficient: float = Field(0.0, ge=0)
    kl_estimator: KLEstimator = "k3"

    @model_validator(mode="after")
    def _every_setting_takes_effect(self) -> Self:
        clips = self.loss in {"ppo", "cispo", "gspo"}
        sampled = self.loss not in {"cross_entropy", "linear"}
        for field in ("clip_low", "clip_high"):
            self._refuse_idle(field, not clips, "loss='ppo', 'cispo' or 'gspo'")
        for field in ("entropy_coefficient", "kl_coefficient"):
            self._refuse_idle(field, not sampled, "a policy-gradient loss")
        self._refuse_idle("kl_estimator", not self.kl_coefficient, "kl_coefficient")
        self._refuse_idle("constant_tokens", self.aggregation != "constant", "aggregation='constant'")
        self._refuse_idle("aggregation", self.loss == "linear", "another loss")
        return self


class OptimStep(UserSettings):
    """Apply the gradient with AdamW and clear it."""

    op: Literal["optim_step"] = "optim_step"
    learning_rate: float = Field(gt=0, le=10)
    max_grad_norm: float = Field(MAX_GRAD_NORM, gt=0)
    weight_decay: float = Field(WEIGHT_DECAY, ge=0, le=1e6)


class Logprobs(WireModel):
    """Compute the logprobs of the tokens with `loss_mask` True."""

    op: Literal["logprobs"] = "logprobs"
    sequences: list[TokenSequence] = Field(min_length=1, max_length=MOST_SEQUENCES)


class Publish(WireModel):
    """Make the current weights available for sampling."""

    op: Literal["publish"] = "publish"


class Save(WireModel):
    """Write a checkpoint with weights and optimizer state."""

    op: Literal["save"] = "save"


class Load(WireModel):
    """Continue from a saved version of this policy or another with the same model and adapter."""

    op: Literal["load"] = "load"
    policy: str = Field(pattern=rf"^{DEFINITE_POLICY_REF}$", max_length=200)
    with_optimizer: bool = True
    """Whether to load its optimizer state; False starts with a fresh optimizer."""


PolicyCall = Annotated[
    ForwardBackward | OptimStep | Logprobs | Publish | Save | Load, Field(discriminator="op")
]
POLICY_CALL: TypeAdapter[ForwardBackward | OptimStep | Logprobs | Publish | Save | Load] = TypeAdapter(
    PolicyCall
)


def images_in(call: PolicyCall) -> list[str]:
    """Return the hashes of the images in a call's sequences, without repetitions."""
    if not isinstance(call, ForwardBackward | Logprobs):
        return []
    return list(dict.fromkeys(image.sha256 for own in call.sequences for image in own.images))


def most_images_in(call: PolicyCall) -> int:
    """Return the most images that one of a call's sequences has."""
    if not isinstance(call, ForwardBackward | Logprobs):
        return 0
    return max((len(own.images) for own in call.sequences), default=0)


class NumberedCall(WireModel):
    """The body of `POST /v1/policies/{policy_id}/calls`. Once acknowledged, it takes effect exactly once."""

    seq: int = Field(ge=1, le=10**12)
    """1, 2, 3, ... within the policy. The same number with the same content is the same call."""
    call: PolicyCall


class CallResult(WireModel):
    """The result of a call; which fields are set depends on its `op`."""

    loss: float | None = None
    logprobs: list[Annotated[list[float], Field(max_length=MOST_TOKENS)]] | None = Field(
        None, max_length=MOST_SEQUENCES
    )
    """Per sequence, one per token with `loss_mask` True, in nats."""
    metrics: dict[str, float] = {}
    skipped: bool = False
    """Whether `optim_step` left the policy unchanged because its gradient was exactly zero."""
    policy: str = ""
    """`job-...@version`, from `save`."""
    version: int | None = None
    """From `publish` and `save`."""
    error: ErrorView | None = None
    """Why the call was refused; the policy is unchanged."""


class CallView(WireModel):
    """The status of a call."""

    seq: int
    done: bool
    result: CallResult | None = None
    state: JobState
    """State of the policy."""
    reason: str = ""
    """What the policy waits for, if anything."""


class PolicyCallsView(WireModel):
    """The status of a policy's calls."""

    policy_id: str
    last_seq: int
    """Number of the newest acknowledged call; 0 before the first."""
