"""Digests of sampled tokens, by which different places can check that they have the same tokens.

The engine's completion, the stored record and the learner's batch hold the same token ids in different
containers. Each place computes the digest from its own copy.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

DIGEST_BYTES = 16
"""Length of a completion's digest."""

NO_DIGEST = bytes(DIGEST_BYTES)
"""The value for a missing digest."""


def completion_digest(policy_version: int, token_ids: Sequence[int]) -> bytes:
    """Return the digest of the tokens of one completion and the version that sampled them."""
    packed = struct.pack(f"<{len(token_ids) + 1}q", policy_version, *token_ids)
    return hashlib.blake2b(packed, digest_size=DIGEST_BYTES).digest()


def chained(head: str, entry: bytes) -> str:
    """Return the head of a chain of hashes after one more entry: it depends on every entry and their order.

    Args:
        head: Head of the chain so far, in hexadecimal; at first `EMPTY_CHAIN`.
        entry: The entry to add.
    """
    return hashlib.sha256(bytes.fromhex(head) + hashlib.sha256(entry).digest()).hexdigest()


EMPTY_CHAIN = hashlib.sha256(b"").hexdigest()
"""The head of a chain without entries."""
