"""Shapes of attention with which engine and learner round the same way on a CPU.

torch's fused attention sums products of float32 numbers in an order that depends on the number of queries and
keys. A learner passes whole sequences, an engine one token at a time. With at least `QUERIES` queries, and
keys padded to a multiple of `KEYS` by masked ones, the order is the same for both up to 192 keys; beyond, MKL
splits its sums, and they only agree up to rounding. This only affects how close their logprobs are: without
it, a difference of one in the last place grows to 1e-5 nats in some contexts.
"""

from __future__ import annotations

QUERIES = 4
"""Products with fewer rows use another kernel."""
KEYS = 16
"""Numbers in the widest vector register; a remainder would be added last."""


def filled_keys(keys: int) -> int:
    """Return the padded number of keys, including masked ones."""
    return -(-keys // KEYS) * KEYS
