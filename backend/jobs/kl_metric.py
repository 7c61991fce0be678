"""The distance from the policy that a job began with, as a metric: of a few sequences, every few steps.

Only for jobs without a KL penalty; with one, every token's divergence is known anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from backend.jobs.job_context import JobContext
from backend.learner.kl import kl_estimates
from backend.learner.sequences import TrainSequence
from tinkergym.schema.job_spec import JobSpec

_SHARE, _MOST = 8, 32
"""One in so many of a step's sequences is asked about, and at most so many."""


def kl_from_the_start(
    context: JobContext[JobSpec], step: int, sequences: Sequence[TrainSequence]
) -> dict[str, float]:
    """Return the metric `kl` where it is due, before the step's first update.

    The mean over sampled tokens of the k3 estimate, in nats: never negative and with little noise. It costs a
    forward pass over the sequences that are asked about.
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
        own = torch.tensor([p for p, sampled in pairs if sampled], dtype=torch.float64)
        total += float(kl_estimates(own, torch.from_numpy(logprobs.astype("float64")), "k3").sum())
        tokens += len(own)
    return {"kl": total / tokens} if tokens else {}


def evenly(sequences: Sequence[TrainSequence], count: int) -> list[TrainSequence]:
    """Return so many sequences, equally far apart: siblings stand together."""
    return [sequences[len(sequences) * number // count] for number in range(count)]
