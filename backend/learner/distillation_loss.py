"""On-policy distillation: a teacher's logprobs of the student's sampled tokens, as advantages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def distillation_advantages(
    sampling_logprobs: npt.NDArray[np.floating], teacher_logprobs: npt.NDArray[np.floating]
) -> FloatArray:
    """Return the teacher's logprob minus the student's for each token that the student sampled.

    Its mean is an unbiased estimate of minus the reverse KL divergence per token, KL(student || teacher), on
    the states that the student visits. Used as the advantage of an importance-weighted policy gradient, it
    teaches the student to sample what the teacher finds likely, token by token; later tokens are not credited
    to earlier ones (a discount of 0).

    Args:
        sampling_logprobs: [P], the sampling student's logprobs, in nats.
        teacher_logprobs: [P], for the same tokens in the same contexts, at the same temperature.

    Returns:
        [P] float64.

    Source:
        On-policy distillation, GKD, arXiv:2306.13649, and MiniLLM, arXiv:2306.08543; per token without
        discount as in Lu and Thinking Machines Lab 2025, "On-Policy Distillation".
    """
    return teacher_logprobs.astype(np.float64) - sampling_logprobs.astype(np.float64)
