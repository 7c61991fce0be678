import socket
import threading

import pytest

from tinkergym.errors import (
    AuthenticationError,
    InvalidRequestError,
    NotFoundError,
    ServiceUnavailableError,
    ServiceUnreachableError,
)
from tinkergym.remote.transport import Connection, lines_of_chunks


@pytest.fixture
def connection(service):
    with Connection(service.url, token=service.api_key, sleep=lambda seconds: None) as connection:
        yield connection


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve_once(answer: bytes, *, family=socket.AF_INET, address=("127.0.0.1", 0)):
    """Answer one request with raw bytes and return the listening socket."""
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()

    def answer_one():
        peer, _ = listener.accept()
        with peer:
            peer.recv(65536)
            peer.sendall(answer)

    threading.Thread(target=answer_one, daemon=True).start()
    return listener


def test_restores_type_and_hint_of_the_services_error(connection):
    with pytest.raises(NotFoundError, match="there is no job 'job-9'"):
        connection.call("GET", "/v1/jobs/job-9")


def test_raises_authentication_error_on_a_wrong_key(service):
    with (
        Connection(service.url, token="tg-wrong") as connection,
        pytest.raises(AuthenticationError),
    ):
        connection.call("GET", "/v1/jobs")


def test_says_how_to_start_a_service_where_none_listens():
    with (
        Connection(f"http://127.0.0.1:{free_port()}", sleep=lambda seconds: None) as connection,
        pytest.raises(ServiceUnreachableError),
    ):
        connection.call("GET", "/v1/health")


@pytest.mark.parametrize("url", ["localhost:8265", "ftp://host", "http://", "unix://"])
def test_rejects_what_is_no_url_with_an_example(url):
    with pytest.raises(InvalidRequestError) as caught:
        Connection(url)
    assert caught.value.field == "url"


@pytest.mark.parametrize("status", [None, 503])
def test_retries_idempotent_call_on_broken_connection_or_absent_service(service, connection, status):
    service.break_next("GET /v1/models", status=status)
    service.break_next("GET /v1/models", status=status)
    assert b"nano" in connection.call("GET", "/v1/models")
    assert service.calls.count("GET /v1/models") == 3


def test_sends_call_once_that_is_not_idempotent(service, connection):
    service.break_next("POST /v1/sample")
    with pytest.raises(ServiceUnreachableError):
        connection.call("POST", "/v1/sample", body=b"{}", idempotent=False)
    assert service.calls.count("POST /v1/sample") == 1


def test_ends_patience_with_the_services_own_error(service):
    for _ in range(20):
        service.break_next("GET /v1/models", status=503)
    with (
        Connection(
            service.url, token=service.api_key, patience_seconds=0.5, sleep=lambda seconds: None
        ) as connection,
        pytest.raises(ServiceUnavailableError, match="broken on purpose"),
    ):
        connection.call("GET", "/v1/models")


def test_says_that_another_program_than_service_answered():
    listener = serve_once(b"HTTP/1.1 418 I'm a teapot\r\nContent-Length: 5\r\n\r\nshort")
    with (
        listener,
        Connection(f"http://127.0.0.1:{listener.getsockname()[1]}") as connection,
        pytest.raises(Exception, match=r"418: short.*does the URL point to a tinkergym service"),
    ):
        connection.call("GET", "/v1/health")


def test_takes_unix_socket_as_an_address_too(tmp_path):
    path = tmp_path / "pool.sock"
    listener = serve_once(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", family=socket.AF_UNIX, address=str(path)
    )
    with listener, Connection(f"unix://{path}") as connection:
        assert connection.call("GET", "/health") == b"{}"


def test_reports_silent_service_as_unavailable_and_names_the_call():
    listener = socket.create_server(("127.0.0.1", 0))
    with (
        listener,
        Connection(
            f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=0.05, patience_seconds=0.0
        ) as connection,
        pytest.raises(ServiceUnavailableError, match=r"has not responded for 0\.05 s \(GET /v1/health\)"),
    ):
        connection.call("GET", "/v1/health")


def test_bypasses_environments_proxy_for_the_loopback(service, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with Connection(service.url, token=service.api_key) as connection:
        assert b"nano" in connection.call("GET", "/v1/models")


@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_joins_lines_that_arrive_in_pieces(size):
    sent = b"one\n\ntwo\nbroken o"
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    assert [line for lines in lines_of_chunks(pieces) for line in lines] == [b"one", b"", b"two"]
