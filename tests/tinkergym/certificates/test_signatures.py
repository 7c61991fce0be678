"""An operator's signature: what `verify` says of it, with and without the key."""

from __future__ import annotations

import sys

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from benchmarks.forgery import packed, resealed, unpacked
from tests.tinkergym.certificates.made_run import PUBLIC, Run, signed
from tinkergym.certificates import verify
from tinkergym.certificates.checks import certify
from tinkergym.errors import InvalidRequestError, MissingExtraError
from tinkergym.schema.certificate import Certificate, Signature, signed_bytes

OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))


@pytest.fixture
def alone(tmp_path):
    """Return a writer of certificates."""

    def write(certificate):
        path = tmp_path / "certificate.json"
        path.write_text(certificate.model_dump_json())
        return path

    return write


def by(key, facts):
    public = key.public_key().public_bytes_raw().hex()
    return Signature(public_key=public, signature=key.sign(signed_bytes(facts)).hex())


def test_says_whether_a_certificate_is_signed(alone):
    certificate = certify(signed(Run().facts))
    unsigned = certify(signed(Run().facts).model_copy(update={"signature": None}))
    for one, key, said, ok in (
        (certificate, None, "not checked", True),
        (certificate, PUBLIC, "valid", True),
        (unsigned, None, "not signed", True),
        (unsigned, PUBLIC, "not signed", False),
    ):
        found = verify(alone(one), key=key)
        assert (found.signed, found.ok) == (said, ok)
    assert PUBLIC in str(verify(alone(certificate)))


def test_refuses_the_signature_of_another_key(alone):
    facts = Run().facts
    theirs = certify(signed(facts).model_copy(update={"signature": by(OTHER, facts)}))
    found = verify(alone(theirs), key=PUBLIC)
    assert (found.signed, found.ok) == ("invalid", False)
    named = by(OTHER, facts).model_copy(update={"public_key": PUBLIC})
    claimed = certify(signed(facts).model_copy(update={"signature": named}))
    assert not verify(alone(claimed), key=PUBLIC).ok


def test_refuses_the_signature_of_other_facts(alone):
    facts = Run().facts
    later = facts.model_copy(update={"made_at": facts.made_at + 1})
    moved = certify(signed(later).model_copy(update={"signature": signed(facts).signature}))
    assert verify(alone(moved)).ok
    assert not verify(alone(moved), key=PUBLIC).ok


def test_covers_every_file_by_a_signature(tmp_path):
    files = unpacked(Run().bundle(tmp_path))
    for name in files:
        if name.startswith("certificate."):
            continue
        changed = files | {name: files[name] + b" \n"}
        changed = resealed(Certificate.model_validate_json(files["certificate.json"]), changed)
        found = verify(packed(changed, tmp_path / "changed.tar"), key=PUBLIC)
        assert found.signed == "valid"
        assert any(problem.startswith(name) for problem in found.problems) or name == "events.sha256", name
        assert not found.ok


def test_takes_a_key_from_a_file(alone, tmp_path):
    path = tmp_path / "operator.pub"
    path.write_text(f"{PUBLIC.upper()}\n")
    assert verify(alone(certify(signed(Run().facts))), key=str(path)).signed == "valid"


@pytest.mark.parametrize(
    ("encoding", "form"),
    [(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), (Encoding.OpenSSH, PublicFormat.OpenSSH)],
)
def test_refuses_files_of_keys_in_other_forms(alone, tmp_path, encoding, form):
    path = tmp_path / "operator.pub"
    path.write_bytes(OTHER.public_key().public_bytes(encoding, form))
    with pytest.raises(InvalidRequestError) as refused:
        verify(alone(certify(signed(Run().facts))), key=str(path))
    assert refused.value.field == "key"


@pytest.mark.parametrize("key", ["", "abc", PUBLIC + "0", "/dev/zero", "g" * 64])
def test_refuses_what_is_not_a_key(alone, key):
    with pytest.raises(InvalidRequestError) as refused:
        verify(alone(certify(signed(Run().facts))), key=key)
    assert refused.value.field == "key"


def test_says_what_to_install_for_signatures(alone, monkeypatch):
    certificate = alone(certify(signed(Run().facts)))
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert verify(certificate).signed == "not checked"
    with pytest.raises(MissingExtraError):
        verify(certificate, key=PUBLIC)
