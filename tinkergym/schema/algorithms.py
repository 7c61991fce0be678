"""How an RL job's policy learns from its episodes: one class per algorithm, told apart by `name`.

They differ in what an episode is compared with. What they share - the batch, the loss, the penalties, the
optimiser - is `PolicyGradient`. A setting that could not take effect is refused where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tinkergym.schema.model import Choice

_LARGEST = 1e6
"""Larger weights and bounds are slips, and products with them would leave what float32 can hold."""
_CLIPPED = ("ppo", "cispo", "gspo")


LossName = Literal["ppo", "reinforce", "importance_sampling", "cispo", "gspo", "dro"]
KLEstimator = Literal["k1", "k2", "k3"]


class PolicyGradient(Choice):
    """What every algorithm says. Not one by itself."""

    group_size: int = Field(8, ge=1)
    """Episodes that start equal: same environment, same seed, same task."""
    groups_per_step: int = Field(16, ge=1)
    """Episodes per train step are `group_size * groups_per_step`."""
    learning_rate: float = Field(1e-3, gt=0, le=10)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """From `learning_rate` at the first step towards 0 at the last, or constant."""
    warmup_steps: int = Field(0, ge=0, le=10**9)
    loss: LossName = "ppo"
    """What is done with a token's importance ratio: clipped (`ppo`), for the whole sequence (`gspo`), clipped
    as a weight (`cispo`), taken as it is (`importance_sampling`), passed over (`reinforce`), or replaced by a
    quadratic penalty (`dro`). On tokens that the very policy sampled, at a step's first update, all have
    the same gradient.
    """
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """Mean over all sampled tokens of the step, or of the minibatch; over sequences of their token means; or
    sum over a constant.
    """
    clip_low: float = Field(0.2, gt=0, le=1)
    clip_high: float = Field(0.2, gt=0, le=_LARGEST)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    dual_clip: float | None = Field(None, gt=1, le=_LARGEST)
    """The largest ratio that counts where the advantage is negative (arXiv:1912.09729); None: no bound."""
    dro_beta: float = Field(0.1, gt=0, le=_LARGEST)
    """How strongly `loss="dro"` holds on to the policy that sampled."""
    entropy_coefficient: float = Field(0.0, ge=0, le=_LARGEST)
    """How much of the answers' entropy, in nats per token, is added to what is maximised: it keeps a policy
    that wins often from repeating one way of winning.
    """
    kl_coefficient: float = Field(0.0, ge=0, le=_LARGEST)
    """How much it costs to leave the policy that the job began with, per nat; 0 computes nothing for it."""
    kl_estimator: KLEstimator = "k3"
    """How the divergence is estimated from one token; `k1` in the reward only."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether it is added to each token's loss, or taken off the reward of the answer it stands in."""
    importance_correction: Literal["none", "truncated", "masked"] = "none"
    """For tokens that the learner would have sampled with another probability than the engine did: `none`
    leaves it to the loss's ratio; `truncated` (TIS) weighs them by at most `importance_cap`; `masked` (MIS)
    leaves out those beyond it. The loss's ratio then begins at 1 in each step.
    """
    importance_cap: float = Field(2.0, ge=1, le=_LARGEST)
    importance_level: Literal["token", "sequence"] = "token"
    """Whether each token is weighed by itself, or by the product over its sequence."""
    overlong_tokens: int = Field(0, ge=0)
    """Over how many tokens before `sampling.max_turn_tokens` an answer's reward is lowered, more and more."""
    overlong_penalty: float = Field(1.0, gt=0, le=_LARGEST)
    """By how much at the limit, in units of reward."""
    mask_truncated: bool = False
    """Whether answers that a limit cut off are left out of the loss; their rewards count all the same."""
    updates_per_step: int = Field(1, ge=1, le=1000)
    """How often all episodes of a step are learned from."""
    minibatches: int = Field(1, ge=1)
    """Into how many parts of whole groups they are cut each time, with an optimiser step after each part.

    The parts after the first are learned from by a policy that is no longer quite the one that sampled them,
    as in later passes; a loss with a ratio corrects for that. With `importance_correction` it costs a forward
    pass.
    """
    max_grad_norm: float = Field(1.0, gt=0)
    weight_decay: float = Field(0.0, ge=0, le=_LARGEST)
    skip_zero_gradient: bool = True
    """Leave the policy as it is where a gradient is exactly zero; False lets AdamW's momentum and decay
    move it all the same.
    """

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
            # The ratio is then to the policy that the one update begins with.
            more = "updates_per_step or minibatches above 1 where there is an importance_correction"
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
            raise ValueError(
                f"dual_clip must be above 1 + clip_high = {1 + self.clip_high:g}, or it takes the place of "
                "the ordinary bound; 3 is usual"
            )
        if self.kl_coefficient and self.kl_in == "loss" and self.kl_estimator == "k1":
            raise ValueError(
                "kl_estimator cannot be 'k1' in the loss: its gradient there is 0 on average and holds "
                "nothing back; choose 'k2' or 'k3', or kl_in='reward'"
            )
        return self

    @model_validator(mode="after")
    def _there_is_something_to_compare(self) -> Self:
        if self.compares_siblings and self.group_size < 2:
            also = " or choose baseline='batch'" if "baseline" in type(self).model_fields else ""
            raise ValueError(
                "group_size must be at least 2 where episodes are compared with their group: one without "
                f"siblings has advantage 0 and nothing would be learned; raise group_size{also}"
            )
        if self.group_size * self.groups_per_step < 2:
            raise ValueError(
                "group_size * groups_per_step must be at least 2: a lone episode has no baseline"
            )
        return self

    @model_validator(mode="after")
    def _minibatches_have_groups(self) -> Self:
        if self.minibatches > self.groups_per_step:
            raise ValueError(
                f"minibatches must be at most groups_per_step = {self.groups_per_step}, or some of them have "
                "no group; lower it"
            )
        return self


class _WithCredit(PolicyGradient):
    """Algorithms that compare returns, of whole episodes or from each turn on."""

    credit: Literal["episode", "turn"] = "episode"
    """Whether every answer of an episode is praised for the whole return, or for what was earned from it on,
    compared with the same turn of the others.
    """
    discount: float = Field(1.0, gt=0, le=1)
    """What a reward counts less for each turn that it is further away; with `credit="turn"`."""
    dynamic_sampling_rounds: int = Field(0, ge=0, le=32)
    """How often within a step the groups whose episodes all earned the same are replaced by new ones
    (DAPO, arXiv:2503.14476).
    """

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
    """Group relative policy optimisation (arXiv:2402.03300): each episode is compared with its siblings."""

    name: Literal["grpo"] = "grpo"
    baseline: Literal["group", "batch"] = "group"
    """What an episode is compared with: its own group, or all episodes of the step."""
    normalize: Literal["std", "none"] = "none"
    """`std` divides by the standard deviation as the paper does; `none` does not, as Dr. GRPO
    (arXiv:2503.20783).
    """

    @property
    def comparison(self) -> tuple[Literal["group", "batch"], Literal["std", "none"]]:
        """As chosen."""
        return self.baseline, self.normalize


class DrGRPO(_WithCredit):
    """GRPO done right (arXiv:2503.20783): no division by the deviation, nor by an answer's own length."""

    name: Literal["dr_grpo"] = "dr_grpo"
    aggregation: Literal["token", "sequence", "constant"] = "constant"

    @property
    def comparison(self) -> tuple[Literal["group"], Literal["none"]]:
        """With the group's mean."""
        return "group", "none"


class RLOO(_WithCredit):
    """REINFORCE leave-one-out (arXiv:2402.14740): each episode is compared with the mean of the others."""

    name: Literal["rloo"] = "rloo"

    @property
    def comparison(self) -> tuple[Literal["leave_one_out"], Literal["none"]]:
        """With the mean of the group's others."""
        return "leave_one_out", "none"


class ReinforcePlusPlus(_WithCredit):
    """REINFORCE++ (arXiv:2501.03262): advantages are brought to deviation 1 over the whole step."""

    name: Literal["reinforce++"] = "reinforce++"
    group_size: int = Field(1, ge=1)
    groups_per_step: int = Field(128, ge=1)
    baseline: Literal["batch", "group"] = "batch"
    """What is taken off first: the mean of the step, or of the group (the paper's REINFORCE++-baseline)."""

    @property
    def comparison(self) -> tuple[Literal["batch", "group"], Literal["batch_std"]]:
        """As chosen, and over the step's deviation."""
        return self.baseline, "batch_std"


class RunningBaseline(PolicyGradient):
    """REINFORCE with a running mean per seat and opponent: each episode is compared with those before it.

    Made for games: no two seats share a mean, nor do games against different kinds of opponents. An episode
    enters the mean after it was compared. The means are part of each checkpoint.

    Source:
        Role-conditioned advantage estimation, SPIRAL, arXiv:2506.24119.
    """

    name: Literal["running_baseline"] = "running_baseline"
    group_size: int = Field(1, ge=1)
    groups_per_step: int = Field(128, ge=1)
    decay: float = Field(0.95, ge=0, lt=1)
    """What an earlier episode counts less for each one after it."""

    credit: ClassVar[Literal["episode"]] = "episode"
    dynamic_sampling_rounds: ClassVar[int] = 0

    @property
    def compares_siblings(self) -> bool:
        """No: with what was earned before."""
        return False

    @model_validator(mode="after")
    def _there_is_something_to_compare(self) -> Self:
        return self  # one episode is enough


class PPO(PolicyGradient):
    """Proximal policy optimisation (arXiv:1707.06347): tokens are compared with what a value head expected.

    The value head is a linear function of the policy's last hidden state. It learns with the policy, in the
    same pass, from generalised advantage estimates (GAE, arXiv:1506.02438). It needs no siblings.
    """

    name: Literal["ppo"] = "ppo"
    group_size: int = Field(1, ge=1)
    groups_per_step: int = Field(128, ge=1)
    gamma: float = Field(1.0, gt=0, le=1)
    """What a reward counts less for each sampled token that it is further away."""
    gae_lambda: float = Field(1.0, ge=0, le=1)
    """How far ahead a token is credited with what was earned, and not with what the value head expects: 1
    trusts the rewards only, 0 the values only.
    """
    whiten_advantages: bool = True
    """Whether advantages are brought to mean 0 and deviation 1 over the step's tokens."""
    value_coefficient: float = Field(0.1, gt=0, le=_LARGEST)
    """How much the value loss, half the squared error, counts beside the policy's loss."""
    value_clip: float | None = Field(None, gt=0, le=_LARGEST)
    """How far a value may move within a step, in units of return; None: no bound."""
    value_learning_rate: float = Field(0.05, gt=0, le=10)
    """Of the value head, scheduled as `learning_rate` is: about how far an update moves a value, in units of
    return.
    """

    credit: ClassVar[Literal["token"]] = "token"
    dynamic_sampling_rounds: ClassVar[int] = 0

    @property
    def compares_siblings(self) -> bool:
        """No: the value head says what was to be expected."""
        return False

    @model_validator(mode="after")
    def _there_is_something_to_compare(self) -> Self:
        return self  # one episode is enough

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
