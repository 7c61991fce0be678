"""What all algorithms share: the settings of the batch, the loss, the penalties and the optimizer.

An algorithm is one file with a subclass that has a `name` of its own, in `tinkergym/algorithms/` or in an
installed pack; see `algorithm_registry`. A setting that could not take effect is refused when it is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from tinkergym.errors import InvalidRequestError
from tinkergym.policy_losses import (
    KLEstimator,
    LossName,
    LossTokens,
    Tensor,
    TokenLosses,
    cispo_loss,
    clipped_policy_loss,
    dro_loss,
    gspo_loss,
    importance_ratios,
    importance_sampling_loss,
    importance_weights,
    kl_estimates,
    reinforce_loss,
)
from tinkergym.schema.model import Choice
from tinkergym.schema.optimizer import Optimized, OptimizerStep
from tinkergym.schema.refusals import Refusal
from tinkergym.trajectory.outcomes import Credits, Memory, Outcome, StepOutcomes

LARGEST = 1e6
"""Larger weights and bounds are mistakes, and their products would exceed float32."""
_CLIPPED = ("ppo", "cispo", "gspo")


class PolicyGradient(Choice, Optimized):
    """The settings of all policy-gradient algorithms."""

    group_size: int = Field(8, ge=1)
    """Episodes per group. They start equal: same environment, same seed, same task."""
    groups_per_step: int = Field(16, ge=1)
    """Groups per train step, which has `group_size * groups_per_step` episodes."""
    loss: LossName = "ppo"
    """How a token's importance ratio is used: clipped (`ppo`), per sequence (`gspo`), clipped as a weight
    (`cispo`), unchanged (`importance_sampling`), ignored (`reinforce`), or replaced by a quadratic penalty
    (`dro`). At a step's first update, on tokens sampled by the same policy, all have the same gradient."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """Mean over all sampled tokens of the step or minibatch; mean over sequences of their token means; or the
    sum divided by a constant."""
    clip_low: float = Field(0.2, gt=0, le=1)
    clip_high: float = Field(0.2, gt=0, le=LARGEST)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    dual_clip: float | None = Field(None, gt=1, le=LARGEST)
    """Upper bound of the ratio for tokens with a negative advantage (arXiv:1912.09729); None means no
    bound."""
    dro_beta: float = Field(0.1, gt=0, le=LARGEST)
    """Strength of the penalty of `loss="dro"` for leaving the policy that sampled."""
    entropy_coefficient: float = Field(0.0, ge=0, le=LARGEST)
    """Weight of the entropy bonus, per token in nats. It keeps a policy that wins often from repeating one
    way of winning."""
    kl_coefficient: float = Field(0.0, ge=0, le=LARGEST)
    """Weight of the KL penalty towards the initial policy, per nat. 0 skips the computation."""
    kl_estimator: KLEstimator = "k3"
    """The estimator of the divergence per token; `k1` only with `kl_in="reward"`."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether the penalty is added to each token's loss, or subtracted from the reward of its completion."""
    importance_correction: Literal["none", "truncated", "masked"] = "none"
    """For tokens to which learner and engine give different probabilities. `none` leaves it to the loss's
    ratio; `truncated` (TIS) weighs them by at most `importance_cap`; `masked` (MIS) excludes those beyond it.
    The loss's ratio then starts at 1 in each step."""
    importance_cap: float = Field(2.0, ge=1, le=LARGEST)
    importance_level: Literal["token", "sequence"] = "token"
    """Whether each token has its own weight, or the product over its sequence."""
    overlong_tokens: int = Field(0, ge=0)
    """The length of the window before `sampling.max_turn_tokens` in which a completion's reward decreases."""
    overlong_penalty: float = Field(1.0, gt=0, le=LARGEST)
    """The penalty at the limit, in units of reward."""
    mask_truncated: bool = False
    """Exclude completions that a limit cut off from the loss. Their rewards still count."""
    updates_per_step: int = Field(1, ge=1, le=1000)
    """How many times a step's episodes are trained on."""
    minibatches: int = Field(1, ge=1)
    """Split each pass into this many minibatches of whole groups, with an optimizer step after each.

    After the first minibatch the policy differs slightly from the one that sampled, as in later passes; a
    loss with a ratio corrects for that. With `importance_correction` this costs one more forward pass.
    """
    skip_zero_gradient: bool = True
    """Skip an update whose gradient is exactly zero. With False, AdamW's momentum and weight decay still move
    the policy."""

    @classmethod
    def own_name(cls) -> str:
        """Return the name by which a job asks for this class; empty for a base class."""
        return getattr(cls.model_fields.get("name"), "default", "")

    @classmethod
    def _is_installed(cls, base: type) -> bool:
        return "name" in vars(base).get("__annotations__", ())

    permutes_returns: ClassVar[bool] = False
    """Whether `credits` does the control experiment `shuffle_rewards` itself, with `StepOutcomes.shuffle`. If
    not, the rewards of the turns are permuted before."""

    @property
    def needs_beyond_returns(self) -> str:
        """Why advantages cannot be computed from returns alone, as of stored episodes; empty if they can."""
        return ""

    @property
    def compares_siblings(self) -> bool:
        """Whether the episodes of a group must start equal, because they are compared with each other."""
        return False

    @property
    def credited(self) -> Literal["episode", "turn", "token"]:
        """What has an advantage of its own."""
        return "episode"

    @property
    def replacement_rounds(self) -> int:
        """How often per step zero-variance groups are replaced with new ones."""
        return 0

    @property
    def head_learning_rate(self) -> float | None:
        """The learning rate of the policy's value head; None without one."""
        return None

    def optimizer_step(self, step: int, steps: int) -> OptimizerStep:
        """Add the rate of the value head, which follows the same schedule."""
        found = super().optimizer_step(step, steps)
        if self.head_learning_rate is not None:
            found["value_learning_rate"] = self.head_learning_rate * (
                found["learning_rate"] / self.learning_rate
            )
        return {**found, "skip_zero_gradient": self.skip_zero_gradient}

    def credits(self, step: StepOutcomes) -> Credits:
        """Return how much better each seat of a step did than expected. Pure."""
        raise NotImplementedError

    @property
    def remembers(self) -> bool:
        """Whether a class has a `remember` of its own."""
        return type(self).remember is not PolicyGradient.remember

    def remember(self, seats: Sequence[Outcome], memory: Memory) -> None:
        """Add a step's outcomes to the memory, after they were trained on and before the step's checkpoint.

        Args:
            seats: As for `credits`, but in the order of the episodes and without the KL penalty.
            memory: Changed in place.
        """

    def has_zero_variance(self, group: Sequence[Outcome]) -> bool:
        """Whether the outcomes of a group teach nothing; asked if there are `replacement_rounds`."""
        raise NotImplementedError

    @property
    def _learns_once(self) -> bool:
        """Whether a step has one update."""
        return self.updates_per_step == self.minibatches == 1

    @property
    def corrects(self) -> bool:
        """Whether there is an importance correction, and so ratios to the step's first policy."""
        return self.importance_correction != "none"

    @property
    def reads_sequences(self) -> bool:
        """Whether a token's loss depends on its whole sequence, which runs the output head twice."""
        return self.loss == "gspo" or (self.corrects and self.importance_level == "sequence")

    @property
    def silent_without_advantage(self) -> bool:
        """Whether a sequence with advantage 0 everywhere has gradient 0, so it need not be computed."""
        return not (self.entropy_coefficient or self._kl_of_the_loss or self.loss == "dro")

    @property
    def _kl_of_the_loss(self) -> float:
        return self.kl_coefficient if self.kl_in == "loss" else 0.0

    def policy_losses(self, tokens: LossTokens, anchor: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return each token's loss before correction and penalties, and where it is clipped (None: nowhere).

        Args:
            tokens: The tokens.
            anchor: [P], the logprobs that ratios are relative to: of the policy that sampled, or with an
                importance correction of the policy that the step began with.
        """
        learner, advantages = tokens.learner_logprobs, tokens.advantages
        bounds = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        match self.loss:
            case "ppo":
                return clipped_policy_loss(learner, anchor, advantages, **bounds, dual_clip=self.dual_clip)
            case "gspo":
                gaps = tokens.sequence_gaps
                return gspo_loss(learner, gaps, advantages, **bounds, dual_clip=self.dual_clip)
            case "cispo":
                return cispo_loss(learner, anchor, advantages, **bounds)
            case "reinforce":
                return reinforce_loss(learner, advantages), None
            case "importance_sampling":
                return importance_sampling_loss(learner, anchor, advantages), None
            case "dro":
                return dro_loss(learner, anchor, advantages, beta=self.dro_beta), None

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Return each token's loss, with correction and KL penalty, and metrics. Pure; uses tensors' methods.

        Raises:
            InvalidRequestError: There is a KL penalty but no reference.
        """
        anchor = tokens.sampling_logprobs
        if self.corrects:
            first = tokens.proximal_logprobs
            anchor = tokens.learner_logprobs.detach() if first is None else first
        losses, clipped = self.policy_losses(tokens, anchor)
        if clipped is None:
            clipped = losses.new_zeros(losses.shape, dtype=bool)
        # Other losses use token ratios even if the correction uses sequences.
        gaps: Tensor = (
            tokens.sequence_gaps if self.loss == "gspo" else tokens.learner_logprobs.detach() - anchor
        )
        above = gaps > 0
        shares = {
            "clip_fraction": clipped,
            "clip_low_fraction": clipped & ~above,
            "clip_high_fraction": clipped & above,
        }
        largest: dict[str, Tensor] = {}
        if self.importance_correction != "none":
            ratios = importance_ratios(anchor, tokens.sampling_logprobs)
            if self.importance_level == "sequence" and tokens.sequence_log_ratios is not None:
                ratios = importance_ratios(tokens.sequence_log_ratios, 0.0)
            weights = importance_weights(ratios, kind=self.importance_correction, cap=self.importance_cap)
            losses = losses * weights
            shares["importance_changed_fraction"] = weights != ratios
            shares["importance_weight_mean"] = weights
            largest = {"importance_ratio_max": ratios, "importance_weight_max": weights}
        if self._kl_of_the_loss:
            if tokens.reference_logprobs is None:
                raise InvalidRequestError(
                    "a KL penalty needs the reference's logprobs, which the sequences lack",
                    hint="get them from Learner.logprobs, or set kl_coefficient to 0",
                    field="reference_logprobs",
                )
            kl = kl_estimates(tokens.learner_logprobs, tokens.reference_logprobs, self.kl_estimator)
            losses = losses + self.kl_coefficient * kl
            shares["kl"] = kl.detach()
        return TokenLosses(losses=losses, shares=shares, largest=largest)

    @model_validator(mode="after")
    def _every_setting_takes_effect(self) -> Self:
        clipped = self.loss in _CLIPPED
        corrected = self.corrects
        for name in ("clip_low", "clip_high", "dual_clip", "dro_beta"):
            # The ratio is then relative to the policy at the start of the only update.
            more = "updates_per_step or minibatches above 1 with an importance_correction"
            self._refuse_idle(name, corrected and self._learns_once, more)
        self._refuse_idle("clip_low", not clipped, "loss='ppo', 'cispo' or 'gspo'")
        self._refuse_idle("clip_high", not clipped, "loss='ppo', 'cispo' or 'gspo'")
        self._refuse_idle("dual_clip", self.loss not in {"ppo", "gspo"}, "loss='ppo' or 'gspo'")
        self._refuse_idle("dro_beta", self.loss != "dro", "loss='dro'")
        self._refuse_idle("kl_estimator", not self.kl_coefficient, "kl_coefficient above 0")
        self._refuse_idle("kl_in", not self.kl_coefficient, "kl_coefficient above 0")
        self._refuse_idle("importance_cap", not corrected, "importance_correction='truncated' or 'masked'")
        self._refuse_idle("importance_level", not corrected, "importance_correction='truncated' or 'masked'")
        self._refuse_idle("overlong_penalty", not self.overlong_tokens, "overlong_tokens above 0")
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            reason = f"must be above 1 + clip_high = {1 + self.clip_high:g}, or it replaces the usual bound"
            raise Refusal("dual_clip", reason, "3 is usual", "dual_clip_too_low").in_validator()
        if self.kl_coefficient and self.kl_in == "loss" and self.kl_estimator == "k1":
            reason = "cannot be 'k1' in the loss: its gradient there is 0 on average"
            hint = "choose 'k2' or 'k3', or kl_in='reward'"
            raise Refusal("kl_estimator", reason, hint, "k1_in_the_loss").in_validator()
        return self

    @model_validator(mode="after")
    def _minibatches_have_groups(self) -> Self:
        if self.minibatches > self.groups_per_step:
            reason = f"must be at most groups_per_step = {self.groups_per_step}, or some have no group"
            raise Refusal("minibatches", reason, "lower it", "empty_minibatches").in_validator()
        return self
