"""Shapes of attention in which engine and learner round alike on a CPU.

torch's fused attention adds up the products of float32 numbers in an order that depends on how many queries
and keys it gets. A learner gives it whole sequences, an engine one token at a time. With at least `QUERIES`
queries, and keys filled up to a multiple of `KEYS` by masked ones, the order is the same for both, up to 192
keys; beyond, MKL cuts its sums in parts, and they agree to rounding only. Nothing depends on it but how close
their logprobs are: without, a difference of one in the last place grows to 1e-5 nats in some contexts.
"""

from __future__ import annotations

QUERIES = 4
"""Products of fewer rows go through another kernel."""
KEYS = 16
"""Numbers in the widest vector register; what is left over would be added up last."""


def filled_keys(keys: int) -> int:
    """Return how many keys to attend to, masked ones included."""
    return -(-keys // KEYS) * KEYS
