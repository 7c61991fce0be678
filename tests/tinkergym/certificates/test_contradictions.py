"""One changed field of the facts, sealed again: what its bundle and a signature contradict."""

from __future__ import annotations

import pytest

from benchmarks.forgery import (
    UNCONTRADICTED,
    certificate_of,
    detects,
    is_listed,
    one_field_changes,
    resealed,
    unpacked,
)
from tests.tinkergym.certificates.made_run import PUBLIC, Run
from tinkergym.certificates import verify

NOT_IN_THIS_RUN = {"job.client_packs.*", "steps.*.records_sha256"}
DETECTED_IF_LARGER = {"agreements.*.mean"}
"""A mean is at most the largest difference."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return unpacked(Run().bundle(tmp_path_factory.mktemp("run")))


def test_contradicts_every_field_with_a_second_record(files, tmp_path):
    passed = [
        field
        for field, certificate in one_field_changes(certificate_of(files))
        if not detects(files, certificate, tmp_path / "forged.tar")
    ]
    assert [field for field in passed if not is_listed(field)] == []
    # The list names no more than it must.
    listed = {pattern for pattern in UNCONTRADICTED if any(is_listed(field, [pattern]) for field in passed)}
    assert set(UNCONTRADICTED) - listed == NOT_IN_THIS_RUN | DETECTED_IF_LARGER
    second = {("publishes", 2), ("checkpoints", 1), ("agreements", 0), ("agreements", 1)}
    assert not any(field[:2] in second for field in passed)


def test_contradicts_smaller_numbers_too(files, tmp_path):
    passed = [
        field
        for field, certificate in one_field_changes(certificate_of(files), smaller=True)
        if not detects(files, certificate, tmp_path / "forged.tar")
    ]
    # Fewer may be right as well.
    assert {field[-1] for field in passed if not is_listed(field)} == {"nonzero_tensors"}


def test_detects_every_changed_field_by_a_signature(files, tmp_path):
    path, fields = tmp_path / "certificate.json", 0
    for field, certificate in one_field_changes(certificate_of(files)):
        if certificate is None:
            continue
        path.write_bytes(resealed(certificate, files)["certificate.json"])
        found = verify(path, key=PUBLIC)
        assert (found.signed, found.ok) == ("invalid", False), field
        fields += 1
    assert fields > 100
