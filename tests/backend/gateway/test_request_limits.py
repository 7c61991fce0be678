"""Senders that no decent client resembles: too much, too slow, half a request."""

import json
import socket
import struct
from contextlib import ExitStack

import psutil
import pytest

from backend.gateway.uvicorn_server import protocol
from backend.settings.gateway_limits import GatewayLimits

pytestmark = pytest.mark.service


def answer_of(connection):
    """Read an HTTP answer to its end and return status and error."""
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    if not received:
        return None, None
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["type"]


def one_answer(connection):
    """Read one answer, however many packets it comes in, and leave the connection open."""
    with connection.makefile("rb") as stream:
        lines = list(iter(stream.readline, b"\r\n"))
        lengths = [line.split(b":")[1] for line in lines if line.lower().startswith(b"content-length")]
        stream.read(int(lengths[0]))
    return lines[0]


def head(gateway, *lines):
    lines = [
        "POST /v1/jobs HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {gateway.keys['ada']}",
        *lines,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def test_rejects_body_announcing_400_megabytes_before_it_is_sent(gateway):
    with gateway.connect() as connection:
        connection.sendall(head(gateway, f"Content-Length: {400 * 2**20}", "Expect: 100-continue"))
        assert answer_of(connection) == (413, "PayloadTooLargeError")


def test_tells_client_that_sends_400_megabytes_anyway_why_it_failed(gateway):
    memory = psutil.Process().memory_info
    megabyte = bytes(2**20)
    with gateway.connect() as connection:
        connection.sendall(head(gateway, f"Content-Length: {400 * 2**20}"))
        before = memory().rss
        for _ in range(400):
            connection.sendall(megabyte)
        assert answer_of(connection) == (413, "PayloadTooLargeError")
    # The gateway runs in a thread of this process.
    assert memory().rss - before < 50 * 2**20


def test_survives_client_that_hangs_up_in_a_body(gateway, caplog):
    with gateway.connect() as connection:
        connection.sendall(head(gateway, "Content-Length: 1000") + b"half")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with gateway.connect() as connection:  # served after the other one's end was noticed
        connection.sendall(head(gateway, "Content-Length: 1", "Connection: close") + b"x")
        assert answer_of(connection)[0] == 422
    own = [record for record in caplog.records if record.name.startswith(("backend.gateway", "uvicorn"))]
    assert [record.message for record in own if record.levelname == "ERROR"] == []


def test_rejects_body_of_unknown_length_once_it_grows_too_large(gateway):
    chunk = b"8000\r\n" + bytes(0x8000) + b"\r\n"
    with gateway.connect() as connection:
        connection.sendall(head(gateway, "Transfer-Encoding: chunked"))
        for _ in range(20):
            connection.sendall(chunk)
        connection.sendall(b"0\r\n\r\n")
        assert answer_of(connection) == (413, "PayloadTooLargeError")


def test_reads_no_body_without_a_key(gateway):
    with gateway.connect() as connection:
        connection.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nhalf")
        assert answer_of(connection) == (401, "AuthenticationError")


def test_times_out_half_a_body(gateway):
    with gateway.connect() as connection:
        connection.sendall(head(gateway, "Content-Length: 1000") + b'{"half')
        assert answer_of(connection) == (408, "RequestTimeoutError")


@pytest.mark.parametrize("sent", [b"", b"GET /v1/health HTTP/1.1\r\nHost:"])
def test_hangs_up_on_half_a_head(gateway, sent):
    with gateway.connect() as connection:
        connection.sendall(sent)
        assert connection.recv(1000) == b""


def test_limits_time_of_a_half_sent_second_request_too(gateway):
    whole = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with gateway.connect() as connection:
        connection.sendall(whole)
        assert b"200 OK" in one_answer(connection)
        connection.sendall(whole[:20])
        assert connection.recv(1000) == b""


def test_leaves_connection_usable_when_a_rejected_body_was_read(client):
    assert client.post("/v1/jobs", content=b"{").status_code == 422
    assert client.get("/v1/jobs").status_code == 200


def test_lets_a_request_take_longer_than_its_head_may(client, spec):
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    # Nobody runs the job, so this waits as long as a head may take.
    lease = {"worker_id": "w", "max_episodes": 1, "wait_seconds": 30}
    assert client.post(f"/v1/jobs/{job_id}/episodes/lease", json=lease).status_code == 200


def test_limits_connections_and_tells_the_client_beyond_the_limit(gateway, client, spec):
    most = gateway.config.limits.connections
    # One key has at most half of them in use.
    with ExitStack() as stack:
        bob = stack.enter_context(gateway.client("bob"))
        streams = {
            name: one.post("/v1/jobs", json=spec).json()["job_id"]
            for name, one in (("ada", client), ("bob", bob))
        }
        opened = []
        for name, job_id in list(streams.items()) * (most // 2):
            opened.append(stack.enter_context(gateway.connect()))
            opened[-1].sendall(
                f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\n"
                f"Authorization: Bearer {gateway.keys[name]}\r\n\r\n".encode()
            )
            assert b"200 OK" in opened[-1].recv(17)
        opened.append(stack.enter_context(gateway.connect()))
        assert answer_of(opened[-1]) == (503, "ServiceUnavailableError")


def test_evicts_longest_idle_connections_first(gateway, client):
    most = gateway.config.limits.connections
    ask = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack:
        idle = []
        for _ in range(most + 1):
            idle.append(stack.enter_context(gateway.connect()))
            idle[-1].sendall(ask)
            assert b"200 OK" in one_answer(idle[-1])
        assert idle[0].recv(1000) == b""
        # Asking again, the second is no longer the longest idle.
        idle[1].sendall(ask)
        assert b"200 OK" in one_answer(idle[1])
        late = stack.enter_context(gateway.connect())
        late.sendall(ask)
        assert b"200 OK" in one_answer(late)
        assert idle[2].recv(1000) == b""
        idle[1].sendall(ask)
        assert b"200 OK" in one_answer(idle[1])


def test_keeps_room_for_requests_beside_silent_connections(gateway, client):
    most = gateway.config.limits.connections
    with ExitStack() as stack:
        silent = [stack.enter_context(gateway.connect()) for _ in range(2 * most)]
        assert client.get("/v1/jobs").status_code == 200
        assert silent[0].recv(1000) == b""


def test_gives_one_key_half_of_the_connections_and_serves_others(gateway, client, spec):
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    most = gateway.config.limits.connections // 2
    request = f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {{}}\r\n\r\n"
    # As whoever wants to get around it would send them.
    spellings = [f"{scheme} {gateway.keys['ada']}" for scheme in ("Bearer", "bearer", "Bearer ", "BEARER")]
    with ExitStack() as stack:
        lines = []
        for number in range(most + 1):
            connection = stack.enter_context(gateway.connect())
            connection.sendall(request.format(spellings[number % len(spellings)]).encode())
            answer = stack.enter_context(connection.makefile("rb"))
            lines.append(answer.readline())
        assert [line.split()[1] for line in lines] == [b"200"] * most + [b"429"]
        assert json.loads(answer.readlines()[-1])["error"]["type"] == "TooManyRequestsError"
        with gateway.client("bob") as bob:
            assert bob.get("/v1/jobs").status_code == 200


@pytest.mark.full("waits until eight large bodies are late")
def test_keeps_body_room_of_a_key_however_its_header_reads(gateway):
    limits = gateway.config.limits
    most = limits.bodies_bytes // 2 // limits.body_bytes
    size = limits.body_bytes
    ours = [f"{scheme} {gateway.keys['ada']}" for scheme in ("Bearer", "bearer", "Bearer ", "BEARER")]
    # Of two headers of a name, the first counts.
    ours += [f"Bearer {gateway.keys['ada']}\r\nAuthorization: Bearer {number}" for number in range(4)]
    with ExitStack() as stack:
        opened = []
        for key in ours:
            connection = stack.enter_context(gateway.connect())
            lines = [
                "POST /v1/jobs HTTP/1.1",
                "Host: localhost",
                f"Authorization: {key}",
                f"Content-Length: {size}",
            ]
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + bytes(size - 1))
            opened.append(connection)
        # One byte is missing until its time is over: what had room is late, what had none was told so.
        statuses = [answer_of(connection)[0] for connection in opened]
    assert statuses.count(408) <= most + 1  # a little of each body is not counted
    assert statuses.count(503) >= len(ours) - most - 1


def test_gives_half_a_head_ten_seconds_at_most():
    assert protocol(GatewayLimits(request_seconds=60)).head_seconds == 10
    assert protocol(GatewayLimits(request_seconds=2)).head_seconds == 2
