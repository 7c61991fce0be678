"""Preference losses: pure functions from the logprobs of two completions to one loss per pair.

Inputs are float64 tensors with gradient. The learner applies the gradient with respect to a completion's
logprob to each of its tokens, see `answer_weights`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F  # noqa: N812

from tinkergym.schema.jobs.dataset import DPO, IPO, ORPO, Hinge, PreferenceLoss, SimPO

FloatArray = npt.NDArray[np.float64]


def dpo_loss(margins: torch.Tensor, *, beta: float, label_smoothing: float = 0.0) -> torch.Tensor:
    """Logistic loss on the margin: -log sigmoid(beta * margin), where some pairs may be labelled wrongly.

    Args:
        margins: [B], (policy - reference) logprob of the chosen completion minus that of the rejected one, in
            nats.
        beta: In 1 / nats.
        label_smoothing: The assumed share of wrongly labelled pairs.

    Returns:
        [B].

    Source:
        DPO, arXiv:2305.18290, equation 7; conservative DPO, Mitchell 2023, "A note on DPO with noisy
        preferences & relationship to IPO", equation 3.
    """
    right, wrong = F.logsigmoid(beta * margins), F.logsigmoid(-beta * margins)
    return -(1.0 - label_smoothing) * right - label_smoothing * wrong


def ipo_loss(margins: torch.Tensor, *, beta: float) -> torch.Tensor:
    """Squared distance of the margin from 1 / (2 beta), so larger margins gain nothing.

    Args:
        margins: [B], as of `dpo_loss`; sums over the completions' tokens, as in the paper.
        beta: tau in the paper, in 1 / nats.

    Returns:
        [B].

    Source:
        IPO, arXiv:2310.12036, equation 17.
    """
    return (margins - 1.0 / (2.0 * beta)) ** 2


def hinge_loss(margins: torch.Tensor, *, beta: float) -> torch.Tensor:
    """max(0, 1 - beta * margin).

    Args:
        margins: [B], as of `dpo_loss`.
        beta: In 1 / nats.

    Returns:
        [B].

    Source:
        SLiC-HF, arXiv:2305.10425; with the margin over a reference: RSO, arXiv:2309.06657.
    """
    return F.relu(1.0 - beta * margins)


def simpo_loss(
    chosen_means: torch.Tensor, rejected_means: torch.Tensor, *, beta: float, gamma: float
) -> torch.Tensor:
    """-log sigmoid(beta * (mean logprob of the chosen - of the rejected) - gamma).

    Args:
        chosen_means: [B], logprob per token, in nats.
        rejected_means: [B], likewise.
        beta: In 1 / nats.
        gamma: The target margin, after multiplication by beta.

    Returns:
        [B].

    Source:
        SimPO, arXiv:2405.14734, equation 6.
    """
    return -F.logsigmoid(beta * (chosen_means - rejected_means) - gamma)


def orpo_loss(
    chosen_means: torch.Tensor, rejected_means: torch.Tensor, *, odds_weight: float
) -> torch.Tensor:
    """The chosen completion's negative log-likelihood, plus weighted -log sigmoid(log odds ratio).

    Args:
        chosen_means: [B], logprob per token, in nats; below 0.
        rejected_means: [B], likewise.
        odds_weight: lambda in the paper.

    Returns:
        [B].

    Source:
        ORPO, arXiv:2403.07691, equations 6 and 7.
    """
    return -chosen_means - odds_weight * F.logsigmoid(_log_odds(chosen_means) - _log_odds(rejected_means))


def _log_odds(means: torch.Tensor) -> torch.Tensor:
    # log(p / (1 - p)); a certain completion has no finite odds, so it stops one rounding step earlier.
    means = means.clamp(max=-1e-9)
    return means - torch.log(-torch.expm1(means))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedAnswers:
    """Sums of logprobs over each completion's tokens in a batch of B pairs, in nats."""

    chosen: FloatArray
    rejected: FloatArray
    chosen_tokens: npt.NDArray[np.int64]
    rejected_tokens: npt.NDArray[np.int64]
    reference_chosen: FloatArray | None = None
    """None, like the next, for losses without a reference."""
    reference_rejected: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceResult:
    """A batch's loss, its gradient, and metrics."""

    loss: float
    """Mean over the pairs."""
    chosen_weights: FloatArray
    """[B], minus the derivative of the loss with respect to each chosen completion's logprob."""
    rejected_weights: FloatArray
    """[B], likewise; below 0 if the completion should become less likely."""
    metrics: dict[str, float]


def needs_reference(loss: PreferenceLoss) -> bool:
    """Whether the loss compares the policy with a reference."""
    return isinstance(loss, DPO | IPO | Hinge)


def preference_loss(loss: PreferenceLoss, answers: ComparedAnswers) -> PreferenceResult:
    """Return a batch's mean loss and the weight of each completion's tokens in its gradient.

    Metrics: `accuracy` is the share of pairs whose chosen completion has the higher reward, `reward_margin`
    the mean difference of the rewards. A completion's reward is beta times its logprob relative to the
    reference; for SimPO beta times its mean logprob, for ORPO its mean logprob.
    """
    chosen, rejected = (
        torch.from_numpy(values.astype(np.float64)).requires_grad_(True)
        for values in (answers.chosen, answers.rejected)
    )
    losses, chosen_rewards, rejected_rewards = _evaluate(loss, answers, chosen, rejected)
    total = losses.mean()
    total.backward()  # type: ignore[no-untyped-call]
    assert chosen.grad is not None
    assert rejected.grad is not None
    won = chosen_rewards - rejected_rewards
    return PreferenceResult(
        loss=float(total.detach()),
        chosen_weights=-chosen.grad.numpy(),
        rejected_weights=-rejected.grad.numpy(),
        metrics={
            "accuracy": float((won > 0).double().mean()),
            "reward_margin": float(won.mean()),
            "reward_chosen": float(chosen_rewards.mean()),
            "reward_rejected": float(rejected_rewards.mean()),
            "logprob_chosen": float(answers.chosen.mean()),
            "logprob_rejected": float(answers.rejected.mean()),
        },
    )


def _evaluate(
    loss: PreferenceLoss, answers: ComparedAnswers, chosen: torch.Tensor, rejected: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the losses and both completions' rewards, [B] each."""
    if isinstance(loss, SimPO | ORPO):
        chosen_means = chosen / torch.from_numpy(answers.chosen_tokens)
        rejected_means = rejected / torch.from_numpy(answers.rejected_tokens)
        if isinstance(loss, ORPO):
            losses = orpo_loss(chosen_means, rejected_means, odds_weight=loss.odds_weight)
            return losses, chosen_means.detach(), rejected_means.detach()
        losses = simpo_loss(chosen_means, rejected_means, beta=loss.beta, gamma=loss.gamma)
        return losses, loss.beta * chosen_means.detach(), loss.beta * rejected_means.detach()
    if answers.reference_chosen is None or answers.reference_rejected is None:
        raise AssertionError("the loss needs a reference, but none was passed")
    over_chosen = chosen - torch.from_numpy(answers.reference_chosen)
    over_rejected = rejected - torch.from_numpy(answers.reference_rejected)
    margins = over_chosen - over_rejected
    match loss:
        case DPO():
            losses = dpo_loss(margins, beta=loss.beta, label_smoothing=loss.label_smoothing)
        case IPO():
            losses = ipo_loss(margins, beta=loss.beta)
        case Hinge():
            losses = hinge_loss(margins, beta=loss.beta)
    return losses, loss.beta * over_chosen.detach(), loss.beta * over_rejected.detach()


def sums(logprobs: Sequence[npt.NDArray[np.float32]]) -> FloatArray:
    """Return the sum of each completion's logprobs, accumulated in float64."""
    return np.asarray([values.sum(dtype=np.float64) for values in logprobs], dtype=np.float64)
