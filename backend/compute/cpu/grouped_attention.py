"""Grouped-query attention, for learner and engine.

Can be compiled by `torch.jit.script`.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, *, scale: float | None, mask: Tensor | None
) -> Tensor:
    """Attend with torch's fused kernels.

    Args:
        queries: [rows, heads, new tokens, dim].
        keys: [rows, key heads, tokens, dim].
        values: [rows, key heads, tokens, value dim].
        scale: Scale of the products; None means `dim ** -0.5`.
        mask: Added to the products; None means causal attention.

    Returns:
        [rows, heads, new tokens, value dim].
    """
    sharing = queries.shape[1] // keys.shape[1]
    if sharing > 1 and keys.device.type != "cpu":
        # With a mask, only the CPU's kernel supports fewer key heads than query heads. There, not repeating
        # them, and not summing their gradients again, saves a tenth of a train step.
        keys, values = keys.repeat_interleave(sharing, dim=1), values.repeat_interleave(sharing, dim=1)
        sharing = 1
    return functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=sharing > 1
    )
