"""Attention in which several heads of queries may share a head of keys and values, for learner and engine.

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
        scale: In front of the products; None is `dim ** -0.5`.
        mask: Added to the products; None attends causally.

    Returns:
        [rows, heads, new tokens, value dim].
    """
    sharing = queries.shape[1] // keys.shape[1]
    if sharing > 1 and keys.device.type != "cpu":
        # Given a mask, only the CPU's kernel takes fewer key heads than query heads. There it saves a tenth
        # of a train step not to repeat them, and not to add up their gradients again.
        keys, values = keys.repeat_interleave(sharing, dim=1), values.repeat_interleave(sharing, dim=1)
        sharing = 1
    return functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=sharing > 1
    )
