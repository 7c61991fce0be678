"""How an RL job's policy learns from its episodes: one class per algorithm, told apart by `name`.

The classes differ in what an episode is compared with. `PolicyGradient` has what they share: the batch, the
loss, the penalties and the optimizer. A setting that could not take effect is refused when it is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tinkergym.schema.model import Choice
from tinkergym.schema.refusals import Refusal

_LARGEST = 1e6
"""Larger weights and bounds are mistakes, and their products would exceed float32."""
_CLIPPED = ("ppo", "cispo", "gspo")


LossName = Literal["ppo", "reinforce", "importance_sampling", "cispo", "gspo", "dro"]
KLEstimator = Literal["k1", "k2", "k3"]


class PolicyGradient(Choice):
    """The settings of all policy-gradient algorithms."""

    group_size: int = Field(8, ge=1)
    """Episodes per group. They start equal: same environment, same seed, same task."""
    groups_per_step: int = Field(16, ge=1)
    """Groups per train step, which has `group_size * groups_per_step` episodes."""
    learning_rate: float = Field(1e-3, gt=0, le=10)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Constant, or decaying from `learning_rate` at the first step towards 0 at the last."""
    warmup_steps: int = Field(0, ge=0, le=10**9)
    loss: LossName = "ppo"
    """How a token's importance ratio is used: clipped (`ppo`), per sequence (`gspo`), clipped as a weight
    (`cispo`), unchanged (`importance_sampling`), ignored (`reinforce`), or replaced by a quadratic penalty
    (`dro`). At a step's first update, on tokens sampled by the same policy, all have the same gradient."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """Mean over all sampled tokens of the step or minibatch; mean over sequences of their token means; or the
    sum divided by a constant."""
    clip_low: float = Field(0.2, gt=0, le=1)
    clip_high: float = Field(0.2, gt=0, le=_LARGEST)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    dual_clip: float | None = Field(None, gt=1, le=_LARGEST)
    """Upper bound of the ratio for tokens with a negative advantage (arXiv:1912.09729); None means no
    bound."""
    dro_beta: float = Field(0.1, gt=0, le=_LARGEST)
    """Strength of the penalty of `loss="dro"` for leaving the policy that sampled."""
    entropy_coefficient: float = Field(0.0, ge=0, le=_LARGEST)
    """Weight of the entropy bonus, per token in nats. It keeps a policy that wins often from repeating one
    way of winning."""
    kl_coefficient: float = Field(0.0, ge=0, le=_LARGEST)
    """Weight of the KL penalty towards the initial policy, per nat. 0 skips the computation."""
    kl_estimator: KLEstimator = "k3"
    """The estimator of the divergence per token; `k1` only with `kl_in="reward"`."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether the penalty is added to each token's loss, or subtracted from the reward of its completion."""
    importance_correction: Literal["none", "truncated", "masked"] = "none"
    """For tokens to which learner and engine give different probabilities. `none` leaves it to the loss's
    ratio; `truncated` (TIS) weighs them by at most `importance_cap`; `masked` (MIS) excludes those beyond it.
    The loss's ratio then starts at 1 in each step."""
    importance_cap: float = Field(2.0, ge=1, le=_LARGEST)
    importance_level: Literal["token", "sequence"] = "token"
    """Whether each token has its own weight, or the product over its sequence."""
    overlong_tokens: int = Field(0, ge=0)
    """The length of the window before `sampling.max_turn_tokens` in which a completion's reward decreases."""
    overlong_penalty: float = Field(1.0, gt=0, le=_LARGEST)
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
    max_grad_norm: float = Field(1.0, gt=0)
    weight_decay: float = Field(0.0, ge=0, le=_LARGEST)
    skip_zero_gradient: bool = True
    """Skip an update whose gradient is exactly zero. With False, AdamW's momentum and weight decay still move
    the policy."""

    @property
    def comparison(
        self,
    ) -> tuple[Literal["group", "leave_one_out", "batch"], Literal["none", "std", "batch_std"]]:
        """What an episode's return is compared with, and what the difference is divided by."""
        raise NotImplementedError

    @property
    def _learns_once(self) -> bool:
        """Whether a step has one update."""
        return self.updates_per_step == self.minibatches == 1

    @property
    def compares_siblings(self) -> bool:
        """Whether the episodes of a group must start equal."""
        return self.comparison[0] != "batch"

    @model_validator(mode="after")
    def _every_setting_takes_effect(self) -> Self:
        clipped = self.loss in _CLIPPED
        corrected = self.importance_correction != "none"
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
    def _there_is_something_to_compare(self) -> Self:
        if self.compares_siblings and self.group_size < 2:
            also = " or choose baseline='batch'" if "baseline" in type(self).model_fields else ""
            reason = (
                "must be at least 2 if episodes are compared with their group: a single episode has "
                "advantage 0, so nothing would be learned"
            )
            raise Refusal("group_size", reason, f"raise group_size{also}", "no_siblings").in_validator()
        if self.group_size * self.groups_per_step < 2:
            reason = "* groups_per_step must be at least 2: a single episode has no baseline"
            raise Refusal("group_size", reason, code="no_baseline").in_validator()
        return self

    @model_validator(mode="after")
    def _minibatches_have_groups(self) -> Self:
        if self.minibatches > self.groups_per_step:
            reason = f"must be at most groups_per_step = {self.groups_per_step}, or some have no group"
            raise Refusal("minibatches", reason, "lower it", "empty_minibatches").in_validator()
        return self


class _WithCredit(PolicyGradient):
    """Algorithms that compare the returns of whole episodes or from each turn on."""

    credit: Literal["episode", "turn"] = "episode"
    """Credit every completion of an episode with the whole return, or with the return from its turn on,
    compared with the same turn of the other episodes."""
    discount: float = Field(1.0, gt=0, le=1)
    """Discount per turn, with `credit="turn"`."""
    dynamic_sampling_rounds: int = Field(0, ge=0, le=32)
    """How often per step zero-variance groups are replaced with new ones (DAPO, arXiv:2503.14476)."""

    @model_validator(mode="after")
    def _turns_and_rounds_take_effect(self) -> Self:
        self._refuse_idle("discount", self.credit == "episode", "credit='turn'")
        self._refuse_idle(
            "dynamic_sampling_rounds",
            not self.compares_siblings,
            "an algorithm that compares episodes with their group",
        )
        return self


class GRPO(_WithCredit):
    """Group relative policy optimization (arXiv:2402.03300): each episode is compared with its group."""

    name: Literal["grpo"] = "grpo"
    baseline: Literal["group", "batch"] = "group"
    """The baseline of an episode: its own group, or all episodes of the step."""
    normalize: Literal["std", "none"] = "none"
    """`std` divides by the standard deviation, as in the paper; `none` does not, as in Dr. GRPO
    (arXiv:2503.20783)."""

    @property
    def comparison(self) -> tuple[Literal["group", "batch"], Literal["std", "none"]]:
        """As set by `baseline` and `normalize`."""
        return self.baseline, self.normalize


class DrGRPO(_WithCredit):
    """GRPO done right (arXiv:2503.20783): no division by standard deviation or completion length."""

    name: Literal["dr_grpo"] = "dr_grpo"
    aggregation: Literal["token", "sequence", "constant"] = "constant"

    @property
    def comparison(self) -> tuple[Literal["group"], Literal["none"]]:
        """The group's mean."""
        return "group", "none"


class RLOO(_WithCredit):
    """REINFORCE leave-one-out (arXiv:2402.14740): each episode is compared with the mean of the others."""

    name: Literal["rloo"] = "rloo"

    @property
    def comparison(self) -> tuple[Literal["leave_one_out"], Literal["none"]]:
        """The mean of the group's other episodes."""
        return "leave_one_out", "none"


class ReinforcePlusPlus(_WithCredit):
    """REINFORCE++ (arXiv:2501.03262): advantages are scaled to standard deviation 1 over the whole step."""

    name: Literal["reinforce++"] = "reinforce++"
    group_size: int = Field(1, ge=1)
    groups_per_step: int = Field(128, ge=1)
    baseline: Literal["batch", "group"] = "batch"
    """What is subtracted first: the mean of the step, or of the group (the paper's REINFORCE++-baseline)."""

    @property
    def comparison(self) -> tuple[Literal["batch", "group"], Literal["batch_std"]]:
        """The chosen baseline, and the step's standard deviation."""
        return self.baseline, "batch_std"


class RunningBaseline(PolicyGradient):
    """REINFORCE with a running mean per seat and kind of opponent as the baseline.

    For games: seats do not share a mean, and neither do games against different kinds of opponents. An
    episode is added to the mean after it was compared. The means are part of each checkpoint.

    Source:
        Role-conditioned advantage estimation, SPIRAL, arXiv:2506.24119.
    """

    name: Literal["running_baseline"] = "running_baseline"
    group_size: int = Field(1, ge=1)
    groups_per_step: int = Field(128, ge=1)
    decay: float = Field(0.95, ge=0, lt=1)
    """Factor by which each new episode reduces the weight of earlier ones."""

    credit: ClassVar[Literal["episode"]] = "episode"
    dynamic_sampling_rounds: ClassVar[int] = 0

    @property
    def compares_siblings(self) -> bool:
        """False: the baseline comes from earlier episodes."""
        return False

    @model_validator(mode="after")
    def _there_is_something_to_compare(self) -> Self:
        return self  # One episode is enough.


class PPO(PolicyGradient):
    """Proximal policy optimization (arXiv:1707.06347): tokens are compared with a value head's estimates.

    The value head is a linear function of the policy's last hidden state. It learns with the policy, in the
    same pass, from generalized advantage estimates (GAE, arXiv:1506.02438). No groups are needed.
    """

    name: Literal["ppo"] = "ppo"
    group_size: int = Field(1, ge=1)
    groups_per_step: int = Field(128, ge=1)
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per sampled token."""
    gae_lambda: float = Field(1.0, ge=0, le=1)
    """λ of generalized advantage estimation: 1 uses only the rewards, 0 only the value head's estimates."""
    whiten_advantages: bool = True
    """Normalize advantages to mean 0 and standard deviation 1 over the step's tokens."""
    value_coefficient: float = Field(0.1, gt=0, le=_LARGEST)
    """Weight of the value loss, half the squared error, next to the policy's loss."""
    value_clip: float | None = Field(None, gt=0, le=_LARGEST)
    """How far a value may move within a step, in units of return; None means no bound."""
    value_learning_rate: float = Field(0.05, gt=0, le=10)
    """Learning rate of the value head, with the same schedule: roughly how far an update moves a value, in
    units of return."""

    credit: ClassVar[Literal["token"]] = "token"
    dynamic_sampling_rounds: ClassVar[int] = 0

    @property
    def compares_siblings(self) -> bool:
        """False: the value head is the baseline."""
        return False

    @model_validator(mode="after")
    def _there_is_something_to_compare(self) -> Self:
        return self  # One episode is enough.

    @model_validator(mode="after")
    def _values_move_within_a_step(self) -> Self:
        self._refuse_idle("value_clip", self._learns_once, "updates_per_step or minibatches above 1")
        return self


def _grpo_unless_named(settings: Any) -> Any:
    if isinstance(settings, Mapping) and "name" not in settings:
        return {"name": "grpo", **settings}
    return settings


Algorithm = Annotated[
    GRPO | DrGRPO | RLOO | ReinforcePlusPlus | RunningBaseline | PPO,
    Field(discriminator="name"),
    BeforeValidator(_grpo_unless_named),
]
"""Settings without a name are GRPO's."""
