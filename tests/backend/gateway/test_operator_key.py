"""The operator's key: created once, readable by its owner only, and what it signs."""

import stat
import threading

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from backend.config import load_config
from backend.errors import ConfigError
from backend.gateway.operator_key import OperatorKey
from tests.tinkergym.certificates.made_run import Run
from tinkergym.certificates.sealing import certify
from tinkergym.certificates.signatures import signature_problem
from tinkergym.schema.certificate import SignedFacts


def pem(key, encryption=None):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())


def test_creates_a_key_that_only_its_owner_reads(tmp_path):
    path = tmp_path / "operator.key"
    first = OperatorKey.at(path, may_create=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert OperatorKey.at(path, may_create=True).public == first.public
    assert [file.name for file in tmp_path.iterdir()] == ["operator.key"]


def test_shares_one_key_between_gateways_that_start_together(tmp_path):
    found, start = [], threading.Barrier(8)

    def begin():
        start.wait()
        found.append(OperatorKey.at(tmp_path / "operator.key", may_create=True).public)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("body", "mode"),
    [
        (None, 0o600),
        (b"", 0o600),
        (b"no key", 0o600),
        (pem(generate_private_key(SECP256R1())), 0o600),
        (pem(Ed25519PrivateKey.generate(), BestAvailableEncryption(b"secret")), 0o600),
        (pem(Ed25519PrivateKey.generate()), 0o640),
        (pem(Ed25519PrivateKey.generate()), 0o604),
    ],
    ids=["missing", "empty", "text", "other_kind", "encrypted", "group", "others"],
)
def test_refuses_a_key_that_cannot_be_used(tmp_path, body, mode):
    path = tmp_path / "operator.key"
    if body is not None:
        path.write_bytes(body)
        path.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        OperatorKey.at(path, may_create=False)
    assert refused.value.field == "operator_key"


def test_signs_what_the_holder_of_its_public_key_can_check(tmp_path):
    key = OperatorKey.at(tmp_path / "operator.key", may_create=True)
    facts = Run().facts
    certificate = certify(SignedFacts(facts=facts, signature=key.signature_of(facts)))
    assert signature_problem(certificate, key.public) == ""


def test_uses_a_configured_key(tmp_path):
    config = load_config(None, [f"data_dir={tmp_path}"])
    assert config.operator_key_file == tmp_path / "operator.key"
    elsewhere = load_config(None, [f"data_dir={tmp_path}", f"operator_key={tmp_path}/other.pem"])
    assert elsewhere.operator_key_file == tmp_path / "other.pem"
