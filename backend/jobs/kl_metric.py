"""The distance from the job's initial policy as a metric: for a few sequences, every few steps.

Only for jobs without a KL penalty; with one, every token's divergence is already known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from backend.jobs.job_context import JobContext
from backend.learner.sequences import FloatArray, TrainSequence
from tinkergym.policy_losses import KLEstimator, kl_estimates
from tinkergym.schema.jobs.rl import RLSpec

_SHARE, _MOST = 8, 32
"""One of this many sequences of a step is used, up to a maximum."""


def kl_from_the_start(
    context: JobContext[RLSpec], step: int, sequences: Sequence[TrainSequence]
) -> dict[str, float]:
    """Return the metric `kl` if it is due, before the step's first update.

    It is the mean over sampled tokens of the k3 estimate, in nats: never negative and with little noise. It
    costs a forward pass over the selected sequences.
    """
    every = context.spec.kl_measured_every
    if not every or step % every or not sequences:
        return {}
    asked = evenly(sequences, min(_MOST, math.ceil(len(sequences) / _SHARE)))
    with context.clock.part("kl"), context.policy.beginning(asked_again=True) as begun_with:
        reference = begun_with.logprobs(asked)
    total, tokens = 0.0, 0
    for sequence, logprobs in zip(asked, reference, strict=True):
        pairs = zip(sequence.sampling_logprobs, sequence.loss_mask, strict=True)
        own = [p for p, sampled in pairs if sampled and p is not None]
        total += float(kl_at_tokens(own, logprobs, "k3").sum())
        tokens += len(own)
    return {"kl": total / tokens} if tokens else {}


def evenly(sequences: Sequence[TrainSequence], count: int) -> list[TrainSequence]:
    """Return this many sequences at equal distances, because those of a group are adjacent."""
    return [sequences[len(sequences) * number // count] for number in range(count)]


def kl_at_tokens(
    own: Sequence[float], reference: FloatArray, estimator: KLEstimator
) -> npt.NDArray[np.float64]:
    """Return the estimate at each sampled token, [P] in nats, computed in float64; see `kl_estimates`.

    Args:
        own: [P], logprobs by the policy that sampled.
        reference: [P], logprobs by the other one.
        estimator: Which.
    """
    import torch  # A loop that estimates nothing runs without it.

    estimates: npt.NDArray[np.float64] = kl_estimates(
        torch.tensor(own, dtype=torch.float64), torch.from_numpy(reference.astype(np.float64)), estimator
    ).numpy()
    return estimates
