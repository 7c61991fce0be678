"""The operator's key: one for all gateways, or a configured one; and what it signs."""

import base64
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
from backend.store.store import Store
from tests.tinkergym.certificates.made_run import Run
from tinkergym.certificates.checks import certify
from tinkergym.certificates.signatures import signature_problem
from tinkergym.schema.certificate import SignedFacts


def pem(key, encryption=None):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())


def of_unknown_kind():
    """Return a key whose algorithm is one that is not assigned."""
    der = Ed25519PrivateKey.generate().private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    other = base64.encodebytes(der.replace(b"\x2b\x65\x70", b"\x2b\x65\x7f"))
    return b"-----BEGIN PRIVATE KEY-----\n" + other + b"-----END PRIVATE KEY-----\n"


@pytest.fixture
def service(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path / 'store.sqlite3'}")
    yield store.service()
    store.close()


def test_shares_one_key_between_gateways_that_start_together(service, tmp_path):
    found, start = [], threading.Barrier(8)

    def begin():
        start.wait()
        found.append(OperatorKey.of_service(service.keep_secret, tmp_path / "operator.key").public)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    # No job uses it, and it is not deleted for that.
    assert (service.has_old_secrets(1e12), service.delete_secrets([], 1e12)) == (False, 0)


def test_adopts_the_key_of_an_earlier_version(service, tmp_path):
    path = tmp_path / "operator.key"
    path.write_bytes(pem(Ed25519PrivateKey.generate()))
    path.chmod(0o600)
    adopted = OperatorKey.of_service(service.keep_secret, path).public
    assert adopted == OperatorKey.at(path).public
    path.unlink()
    assert OperatorKey.of_service(service.keep_secret, path).public == adopted


@pytest.mark.parametrize(
    ("body", "mode"),
    [
        (None, 0o600),
        (b"", 0o600),
        (b"no key", 0o600),
        (pem(generate_private_key(SECP256R1())), 0o600),
        (of_unknown_kind(), 0o600),
        (pem(Ed25519PrivateKey.generate(), BestAvailableEncryption(b"secret")), 0o600),
        (pem(Ed25519PrivateKey.generate()), 0o640),
        (pem(Ed25519PrivateKey.generate()), 0o604),
    ],
    ids=["missing", "empty", "text", "other_kind", "unknown_kind", "encrypted", "group", "others"],
)
def test_refuses_a_key_that_cannot_be_used(tmp_path, body, mode):
    path = tmp_path / "operator.key"
    if body is not None:
        path.write_bytes(body)
        path.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        OperatorKey.at(path)
    assert refused.value.field == "operator_key"


def test_signs_what_the_holder_of_its_public_key_can_check():
    key = OperatorKey(Ed25519PrivateKey.generate())
    facts = Run().facts
    certificate = certify(SignedFacts(facts=facts, signature=key.signature_of(facts)))
    assert signature_problem(certificate, key.public) == ""


def test_uses_a_configured_key(tmp_path):
    config = load_config(None, [f"data_dir={tmp_path}"])
    assert config.operator_key_file == tmp_path / "operator.key"
    elsewhere = load_config(None, [f"data_dir={tmp_path}", f"operator_key={tmp_path}/other.pem"])
    assert elsewhere.operator_key_file == tmp_path / "other.pem"
