"""The gradient of a preference loss with respect to the logprobs of completions.

In float64. The learner applies a completion's weight to each of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tinkergym.schema.preference_losses import ComparedLogprobs, PreferenceLoss

FloatArray = npt.NDArray[np.float64]


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


def preference_loss(loss: PreferenceLoss, answers: ComparedAnswers) -> PreferenceResult:
    """Return a batch's mean loss and the weight of each completion's tokens in its gradient.

    Metrics: `accuracy` is the share of pairs whose chosen completion has the higher reward, `reward_margin`
    the mean difference of the rewards, which the loss defines.
    """
    import torch  # Loops without pairs run without it.

    chosen, rejected = (
        torch.from_numpy(values.astype(np.float64)).requires_grad_(True)
        for values in (answers.chosen, answers.rejected)
    )
    given = {"chosen": chosen, "rejected": rejected}
    rest = ("chosen_tokens", "rejected_tokens", "reference_chosen", "reference_rejected")
    for name in rest:
        if (values := getattr(answers, name)) is not None:
            given[name] = torch.from_numpy(values)
    found = loss.pair_losses(ComparedLogprobs(**given))
    chosen_rewards, rejected_rewards = found.chosen_rewards, found.rejected_rewards
    total = found.losses.mean()
    total.backward()
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


def sums(logprobs: Sequence[npt.NDArray[np.float32]]) -> FloatArray:
    """Return the sum of each completion's logprobs, accumulated in float64."""
    return np.asarray([values.sum(dtype=np.float64) for values in logprobs], dtype=np.float64)
