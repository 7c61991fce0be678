"""One changed field of the facts, sealed again: what its bundle and a signature contradict."""

from __future__ import annotations

import copy
import json

import pytest

from tests.tinkergym.certificates.made_run import PUBLIC, Run, packed, resealed, unpacked
from tinkergym.certificates import verify
from tinkergym.errors import TinkerGymError
from tinkergym.schema.certificate import Certificate

UNCONTRADICTED = {
    "job.packs.own",
    "service_version",
    "made_at",
    "attempts.*.worker_id",
    "attempts.*.versions.python",
    "attempts.*.place.engine",
    "publishes.*.weights_sha256",
    "agreements.*.largest",
    "agreements.*.tokens",
    "adapters.*.norm",
    "adapters.*.tokens",
    "checkpoints.*.view.files.adapter_config.json",
    "checkpoints.*.view.files.adapter_model.safetensors",
    "checkpoints.*.view.files.manifest.json",
    "checkpoints.*.view.files.optimizer.safetensors",
    "checkpoints.*.manifest_sha256",
}
"""Facts of which a bundle has no second record. docs/guides/certificates.md names them. Of publishes and
checkpoints, those of the newest are contradicted; of agreements, those on episodes."""

MAY_BE_SMALLER = {"adapters.*.nonzero_tensors"}
"""Of these, a record of a smaller number may be right as well."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return unpacked(Run().bundle(tmp_path_factory.mktemp("run")))


def leaves(value, path=()):
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in items:
            yield from leaves(one, (*path, key))
    elif value is not None:
        yield path, value


def other(value, *, smaller):
    """Return another value; None if there is no smaller one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        if smaller:
            return None
        return not value if isinstance(value, bool) else "0" * 64 if len(value) == 64 else value + "x"
    return value - 1 if smaller else value + 1


def changes(document, *, smaller=False):
    """Yield the path of each field of the facts, and the certificate with another value of it."""
    for path, value in leaves(document["facts"]):
        changed = copy.deepcopy(document)
        holder = changed["facts"]
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = other(value, smaller=smaller)
        if holder[path[-1]] is None:
            continue
        try:
            yield path, Certificate.model_validate(changed)
        except ValueError:
            continue  # It is refused as it is read.


def undetected(files, path, *, smaller=False):
    """Return the fields of which another value passes, sealed again."""
    passed = set()
    for field, certificate in changes(json.loads(files["certificate.json"]), smaller=smaller):
        try:
            if verify(packed(resealed(certificate, files), path)).ok:
                passed.add(field)
        except TinkerGymError:
            continue
    return passed


def named(path):
    return ".".join("*" if isinstance(key, int) else key for key in path)


def test_contradicts_every_field_with_a_second_record(files, tmp_path):
    passed = undetected(files, tmp_path / "changed.tar")
    assert {named(field) for field in passed} == UNCONTRADICTED
    # Of the newest ones there are second records.
    second = {("publishes", 2), ("checkpoints", 1), ("agreements", 0), ("agreements", 1)}
    assert not any(field[:2] in second for field in passed)


def test_contradicts_smaller_numbers_too(files, tmp_path):
    passed = {named(field) for field in undetected(files, tmp_path / "changed.tar", smaller=True)}
    assert passed - UNCONTRADICTED == MAY_BE_SMALLER


def test_a_signature_detects_every_changed_field(files, tmp_path):
    path = tmp_path / "certificate.json"
    fields = 0
    for field, certificate in changes(json.loads(files["certificate.json"])):
        path.write_bytes(resealed(certificate, files)["certificate.json"])
        found = verify(path, key=PUBLIC)
        assert (found.signed, found.ok) == ("invalid", False), field
        fields += 1
    assert fields > 100
