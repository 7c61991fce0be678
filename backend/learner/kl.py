"""Estimates of the KL divergence of a policy from a reference, from one sampled token each.

Pure functions of logprobs at one temperature. The caller decides whether an estimate is subtracted from the
reward or added to the loss.
"""

from __future__ import annotations

import torch

from tinkergym.schema.algorithms import KLEstimator


def kl_estimates(
    policy_logprobs: torch.Tensor, reference_logprobs: torch.Tensor, estimator: KLEstimator
) -> torch.Tensor:
    """Estimate KL(policy || reference) at each token that the policy sampled.

    With `d = policy_logprob - reference_logprob`:

    - `k1 = d`: unbiased, of either sign, noisy. Its gradient has mean 0 over the policy's own samples, so it
      has no effect in a loss and belongs in the reward.
    - `k2 = d^2 / 2`: never negative, biased, but its gradient is, on average, that of the divergence.
    - `k3 = exp(-d) - 1 + d`: never negative, unbiased, little noise. Its gradient is, on average, that of the
      other divergence, KL(reference || policy).

    Args:
        policy_logprobs: [P], in nats; with gradient if the estimate is part of a loss.
        reference_logprobs: [P].
        estimator: Which.

    Returns:
        [P], in nats.

    Source:
        J. Schulman, "Approximating KL divergence", 2020 (joschu.net/blog/kl-approx.html); k3 in the loss as
        in GRPO, arXiv:2402.03300; the gradients, arXiv:2506.09477.
    """
    gap = policy_logprobs - reference_logprobs
    match estimator:
        case "k1":
            return gap
        case "k2":
            return 0.5 * gap.square()
        case "k3":
            return torch.expm1(-gap) + gap
