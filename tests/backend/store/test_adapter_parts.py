"""Parts of adapters on their way: each once, and together no more than an adapter may have."""

from __future__ import annotations

import hashlib

import pytest

from backend.store.adapter_parts import AdapterParts
from backend.store.local_blobs import LocalBlobs
from tinkergym.errors import InvalidRequestError, PayloadTooLargeError

BODIES = [b"first" * 20, b"second" * 20]
NAMES = [hashlib.sha256(body).hexdigest() for body in BODIES]


@pytest.fixture
def parts(tmp_path):
    found = AdapterParts(LocalBlobs(tmp_path / "uploads"), "ada")
    for name, body in zip(NAMES, BODIES, strict=True):
        found.add(name, body, most_bytes=1000)
    return found


def test_joins_parts_in_their_order(parts, tmp_path):
    joined = parts.join([NAMES[1], NAMES[0]], tmp_path / "out", most_bytes=1000)
    assert (tmp_path / "out").read_bytes() == BODIES[1] + BODIES[0]
    assert joined == hashlib.sha256(BODIES[1] + BODIES[0]).hexdigest()


def test_writes_no_more_of_a_repeated_part_than_allowed(parts, tmp_path):
    with pytest.raises(PayloadTooLargeError):
        parts.join(NAMES[:1] * 20_000, tmp_path / "out", most_bytes=1000)
    assert (tmp_path / "out").stat().st_size <= 1000


def test_refuses_parts_that_are_missing_damaged_or_too_many(parts, tmp_path):
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "no_part"):
        parts.join(["0" * 64], tmp_path / "out", most_bytes=1000)
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "wrong_hash"):
        parts.add(NAMES[0], b"other", most_bytes=1000)
    with pytest.raises(PayloadTooLargeError):
        parts.add(hashlib.sha256(b"x" * 900).hexdigest(), b"x" * 900, most_bytes=1000)
