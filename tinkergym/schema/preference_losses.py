"""Losses for pairs of completions: a loss is a class with its settings, and what it computes.

They are given tensors and use their methods only, so nothing here imports torch. A class with a `name` is a
loss that jobs can name; nothing else has to list it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

from pydantic import Field

from tinkergym.schema.model import Choice

Tensor = Any
"""A torch tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLogprobs:
    """Sums of logprobs over each completion's tokens for B pairs, in nats; all [B] float64."""

    chosen: Tensor
    """With gradient."""
    rejected: Tensor
    """With gradient."""
    chosen_tokens: Tensor
    rejected_tokens: Tensor
    reference_chosen: Tensor | None = None
    """None, like the next, for losses without a reference."""
    reference_rejected: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PairLosses:
    """A loss's results, [B] each."""

    losses: Tensor
    """With gradient."""
    chosen_rewards: Tensor
    """What the loss takes for the quality of each completion; without gradient."""
    rejected_rewards: Tensor


class PreferenceLossSettings(Choice):
    """A loss on pairs of completions."""

    needs_reference: ClassVar[bool] = False
    """Whether it compares the policy with the one that the job starts from."""

    def pair_losses(self, pairs: ComparedLogprobs) -> PairLosses:
        """Return each pair's loss. Pure."""
        raise NotImplementedError


class _OverReference(PreferenceLossSettings):
    """A loss of margins: (policy - reference) logprobs of the chosen completions minus the rejected ones'."""

    needs_reference: ClassVar[bool] = True
    beta: float = Field(0.1, gt=0)
    """Scales the margin, in 1 / nats; small values allow the policy to move further from the reference."""

    def of_margins(self, margins: Tensor) -> Tensor:
        """Return the losses of margins, [B] each."""
        raise NotImplementedError

    def pair_losses(self, pairs: ComparedLogprobs) -> PairLosses:
        """Return the losses of the margins. A reward is beta times the logprob over the reference's."""
        assert pairs.reference_chosen is not None and pairs.reference_rejected is not None
        chosen = pairs.chosen - pairs.reference_chosen
        rejected = pairs.rejected - pairs.reference_rejected
        losses = self.of_margins(chosen - rejected)
        return PairLosses(losses, self.beta * chosen.detach(), self.beta * rejected.detach())


class DPO(_OverReference):
    """Direct preference optimization (arXiv:2305.18290): a logistic loss on the margin over a reference."""

    name: Literal["dpo"] = "dpo"
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """The fraction of pairs that are assumed to be swapped (conservative DPO)."""

    def of_margins(self, margins: Tensor) -> Tensor:
        """-log sigmoid(beta * margin), where some pairs may be labelled wrongly.

        Source:
            DPO, arXiv:2305.18290, equation 7; conservative DPO, Mitchell 2023, "A note on DPO with noisy
            preferences & relationship to IPO", equation 3.
        """
        right, wrong = _log_sigmoid(self.beta * margins), _log_sigmoid(-self.beta * margins)
        return -(1.0 - self.label_smoothing) * right - self.label_smoothing * wrong


class IPO(_OverReference):
    """Identity preference optimization (arXiv:2310.12036): the target margin is 1 / (2 beta)."""

    name: Literal["ipo"] = "ipo"

    def of_margins(self, margins: Tensor) -> Tensor:
        """Squared distance of the margin from 1 / (2 beta), so larger margins gain nothing.

        The logprobs are sums over the completions' tokens, as in the paper, where beta is called tau.

        Source:
            IPO, arXiv:2310.12036, equation 17.
        """
        return (margins - 1.0 / (2.0 * self.beta)) ** 2


class Hinge(_OverReference):
    """A hinge on the margin over a reference (SLiC-HF, arXiv:2305.10425, as in arXiv:2309.06657)."""

    name: Literal["hinge"] = "hinge"

    def of_margins(self, margins: Tensor) -> Tensor:
        """max(0, 1 - beta * margin)."""
        return (1.0 - self.beta * margins).relu()


class SimPO(PreferenceLossSettings):
    """Simple preference optimization (arXiv:2405.14734): mean logprobs and a target margin, no reference."""

    name: Literal["simpo"] = "simpo"
    beta: float = Field(2.0, gt=0)
    gamma: float = Field(1.0, ge=0)
    """The target margin, in units of beta times nats per token."""

    def pair_losses(self, pairs: ComparedLogprobs) -> PairLosses:
        """-log sigmoid(beta * (mean logprob of the chosen - of the rejected) - gamma).

        A reward is beta times the mean logprob.

        Source:
            SimPO, arXiv:2405.14734, equation 6.
        """
        chosen, rejected = pairs.chosen / pairs.chosen_tokens, pairs.rejected / pairs.rejected_tokens
        losses = -_log_sigmoid(self.beta * (chosen - rejected) - self.gamma)
        return PairLosses(losses, self.beta * chosen.detach(), self.beta * rejected.detach())


class ORPO(PreferenceLossSettings):
    """Odds ratio preference optimization (arXiv:2403.07691): also raises the chosen likelihood."""

    name: Literal["orpo"] = "orpo"
    odds_weight: float = Field(0.1, gt=0)
    """Weight of the odds ratio's loss (lambda in the paper)."""

    def pair_losses(self, pairs: ComparedLogprobs) -> PairLosses:
        """The chosen completion's negative log-likelihood, plus weighted -log sigmoid(log odds ratio).

        A reward is the mean logprob.

        Source:
            ORPO, arXiv:2403.07691, equations 6 and 7.
        """
        chosen, rejected = pairs.chosen / pairs.chosen_tokens, pairs.rejected / pairs.rejected_tokens
        losses = -chosen - self.odds_weight * _log_sigmoid(_log_odds(chosen) - _log_odds(rejected))
        return PairLosses(losses, chosen.detach(), rejected.detach())


def _log_sigmoid(values: Tensor) -> Tensor:
    return -(-values).logaddexp(values.new_zeros(()))


def _log_odds(means: Tensor) -> Tensor:
    # log(p / (1 - p)); a certain completion has no finite odds, so it stops one rounding step earlier.
    means = means.clamp(max=-1e-9)
    return means - (-means.expm1()).log()


def _named(base: type[PreferenceLossSettings]) -> Iterator[type[PreferenceLossSettings]]:
    for kind in base.__subclasses__():
        if "name" in kind.model_fields:
            yield kind
        yield from _named(kind)


PREFERENCE_LOSSES = {str(kind.model_fields["name"].default): kind for kind in _named(PreferenceLossSettings)}
"""By name."""

if TYPE_CHECKING:
    PreferenceLoss = PreferenceLossSettings
else:
    PreferenceLoss = Annotated[Union[tuple(PREFERENCE_LOSSES.values())], Field(discriminator="name")]  # noqa: UP007 - made of what there is
