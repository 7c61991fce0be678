import itertools
import json
import socket
import threading

import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.uri import parse_uri

from tests.environment_server import TOKEN
from tinkergym.errors import ServiceUnreachableError
from tinkergym.serving.wire_protocol import PATH, VERSION, decode

ID = "0123456789abcdef" * 2


def ask(link, **message):
    link.send(json.dumps(message))
    return json.loads(link.recv(timeout=120))


def session(link, **more):
    return ask(link, op="open", version=VERSION, session=ID, **more)


def test_rejects_hundred_megabytes_by_their_header(stranger):
    link = stranger.connect()
    session(link)
    with pytest.raises(ConnectionClosed) as caught:
        link.send(b"x" * 100_000_000)
        link.recv(timeout=120)
    assert caught.value.rcvd is None or caught.value.rcvd.code == 1009
    assert ask(stranger.connect(), op="about", version=VERSION)["capacity"] == 64


@pytest.mark.parametrize("patience", [0.3])
@pytest.mark.parametrize("sent", [b"", b"GET / HTT", b"GET /v1/session HTTP/1.1\r\nHost: localhost\r\nUpgr"])
def test_hangs_up_on_request_that_never_ends(stranger, sent):
    with socket.create_connection(stranger.address, timeout=120) as link:
        link.sendall(sent)
        assert link.recv(1000) == b""


@pytest.mark.parametrize("patience", [0.3])
def test_hangs_up_on_connection_that_opens_no_session(stranger):
    link = stranger.connect()
    with pytest.raises(ConnectionClosed):
        link.recv(timeout=120)


def test_limits_number_of_connections(serve, connect):
    url = serve(capacity=1)
    envs = [connect(url) for _ in range(18)]
    with pytest.raises(ServiceUnreachableError, match="too many connections"):
        connect(url, reconnect_seconds=0.05)
    envs[0].close()
    connect(url, reconnect_seconds=60)


def test_keeps_no_client_waiting_while_a_large_frame_is_read(stranger, monkeypatch):
    reading, answered = threading.Event(), threading.Event()

    def slow_decode(frame):
        if len(frame) > 100_000:
            reading.set()
            answered.wait(120)
        return decode(frame)

    monkeypatch.setattr("tinkergym.serving.server_app.decode", slow_decode)
    link, other = stranger.connect(), stranger.connect()
    session(link)
    link.send(json.dumps({"op": "step", "i": 0, "action": "x" * 200_000}))
    assert reading.wait(120)
    other.send(json.dumps({"op": "about", "version": VERSION}))
    assert json.loads(other.recv(timeout=60.0))["version"] == VERSION
    answered.set()
    assert "error" in json.loads(link.recv(timeout=120))  # nothing was reset yet


def test_hangs_up_on_who_reads_none_of_its_answers(serve, monkeypatch):
    monkeypatch.setattr("tinkergym.serving.server.PunctualSocket.reading_seconds", 0.2)
    address = serve(capacity=1, lease_seconds=0.1).partition("//")[2].split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect((address[0], int(address[1])))
        speaker = ClientProtocol(parse_uri(f"ws://{':'.join(address)}{PATH}"))
        request = speaker.connect()
        request.headers["Authorization"] = f"Bearer {TOKEN}"
        speaker.send_request(request)
        client.sendall(b"".join(speaker.data_to_send()))
        speaker.receive_data(client.recv(4096))
        says = [{"op": "open", "version": VERSION, "session": ID}, {"op": "reset", "i": 0, "seed": 1}]
        steps = ({"op": "step", "i": number, "action": "long"} for number in itertools.count(1))
        with pytest.raises(ConnectionError):
            for message in itertools.chain(says, steps):
                speaker.send_text(json.dumps(message).encode())
                client.sendall(b"".join(speaker.data_to_send()))
