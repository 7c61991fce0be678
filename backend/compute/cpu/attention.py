"""Attention as learner and engine share it: grouped queries, in shapes that both round the same way on a CPU.

torch's fused attention sums products of float32 numbers in an order that depends on the number of queries and
keys. A learner passes whole sequences, an engine one token at a time. With at least `QUERIES` queries, and
keys padded to a multiple of `KEYS` by masked ones, the order is the same for both up to 192 keys; beyond, MKL
splits its sums, and they only agree up to rounding. This only affects how close their logprobs are: without
it, a difference of one in the last place grows to 1e-5 nats in some contexts.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

QUERIES = 4
"""Products with fewer rows use another kernel."""
KEYS = 16
"""Numbers in the widest vector register; a remainder would be added last."""


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, *, scale: float | None, mask: Tensor | None
) -> Tensor:
    """Attend with torch's fused kernels. Can be compiled by `torch.jit.script`.

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


def filled_keys(keys: int) -> int:
    """Return the padded number of keys, including masked ones."""
    return -(-keys // KEYS) * KEYS
