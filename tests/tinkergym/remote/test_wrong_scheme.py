"""A URL with http for https, or the other way round, is told in one sentence, at once."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from contextlib import suppress

import pytest

from tinkergym.errors import ServiceUnreachableError, TinkerGymError
from tinkergym.remote.transport import Connection


@pytest.fixture
def port():
    """Return a function that serves connections with another one until the test ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def serve(handle):
        def accept():
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:  # closed
                    return
                with peer:
                    handle(peer)

        threads.append(threading.Thread(target=accept))
        threads[-1].start()
        return listener.getsockname()[1]

    yield serve
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for thread in threads:
        thread.join(60)


@pytest.fixture
def tls(tmp_path):
    """Return a server's context with a certificate of its own."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "both.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


def refused(url):
    """Return the error of a call, and how often it was tried again."""
    pauses = []
    with Connection(url, sleep=pauses.append) as connection, pytest.raises(ServiceUnreachableError) as error:
        connection.call("GET", "/v1/health")
    return error.value, len(pauses)


def test_names_https_where_service_speaks_tls(port, tls):
    def answer(peer):
        with suppress(OSError), tls.wrap_socket(peer, server_side=True):
            pass

    number = port(answer)
    error, repeats = refused(f"http://127.0.0.1:{number}")
    assert (error.field, repeats) == ("url", 0)


def test_names_http_where_service_speaks_it(port):
    def answer(peer):
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    number = port(answer)
    error, repeats = refused(f"https://127.0.0.1:{number}")
    assert (error.field, repeats) == ("url", 0)


def answer_plainly(peer, head):
    peer.recv(65536)
    peer.sendall(f"HTTP/1.1 {head}\r\nContent-Length: 4\r\n\r\npage".encode())


def test_names_https_where_proxy_redirects_to_it(port):
    head = "308 Permanent Redirect\r\nLocation: https://gym.example:8443/lab/v1/health"
    error, repeats = refused(f"http://127.0.0.1:{port(lambda peer: answer_plainly(peer, head))}/lab")
    assert (error.field, repeats) == ("url", 0)


def test_names_https_where_proxy_answers_plain_requests_itself(port, tls):
    def answer(peer):
        if peer.recv(1, socket.MSG_PEEK) != b"\x16":  # the first byte of TLS
            return answer_plainly(peer, "400 Bad Request")
        with suppress(OSError), tls.wrap_socket(peer, server_side=True):
            return None

    error, repeats = refused(f"http://127.0.0.1:{port(answer)}")
    assert (error.field, repeats) == ("url", 0)


@pytest.mark.parametrize("head", ["301 Moved\r\nLocation: http://gym.example/", "400 Bad Request"])
def test_shows_other_pages_as_they_are(port, head):
    url = f"http://127.0.0.1:{port(lambda peer: answer_plainly(peer, head))}"
    with Connection(url) as connection, pytest.raises(TinkerGymError) as error:
        connection.call("GET", "/v1/health")
    assert error.value.field == ""


def test_takes_broken_http_service_for_no_other(port):
    error, repeats = refused(f"http://127.0.0.1:{port(lambda peer: peer.recv(65536))}")
    assert error.field == ""
    assert repeats
