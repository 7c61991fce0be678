"""Estimates of a policy's divergence from another at tokens that it sampled, for rewards and metrics.

The KL penalty in a loss is in `PolicyGradient.token_losses`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from backend.learner.sequences import FloatArray
from tinkergym.policy_losses import KLEstimator, kl_estimates


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
