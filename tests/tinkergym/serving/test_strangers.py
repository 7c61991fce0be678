"""What no decent client sends. Each time the server answers or hangs up, and serves the next one."""

import contextlib
import itertools
import json
import random
import socket
import threading

import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as bare
from websockets.uri import parse_uri

from tinkergym.serving.protocol import PATH, VERSION, decode
from tinkergym.testing.environment_server import TOKEN

ID = "0123456789abcdef" * 2


@pytest.fixture
def patience():
    """Seconds that the server waits for a session: where this is not the subject, as long as it takes."""
    return 60.0


@pytest.fixture
def stranger(serve, patience):
    """Speak to a server without our client."""
    url = serve(open_timeout_seconds=patience, max_message_bytes=1_000_000)

    class Stranger:
        address = (url.split("//")[1].split(":")[0], int(url.rpartition(":")[2]))

        def connect(self, token=TOKEN):
            headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
            return stack.enter_context(
                bare(url + PATH, additional_headers=headers, max_size=None, proxy=None)
            )

    Stranger.url = url
    with contextlib.ExitStack() as stack:
        yield Stranger()


def ask(link, **message):
    link.send(json.dumps(message))
    return json.loads(link.recv(timeout=20))


def session(link, **more):
    return ask(link, op="open", version=VERSION, session=ID, **more)


def test_without_the_token_there_is_no_connection(stranger):
    for token in (None, "wrong", TOKEN + "x", "", "ü"):
        with pytest.raises((InvalidStatus, UnicodeEncodeError)) as caught:
            stranger.connect(token)
        if isinstance(caught.value, InvalidStatus):
            assert caught.value.response.status_code == 401


def test_another_version_is_refused_by_name(stranger):
    answer = ask(stranger.connect(), op="open", version=99, session=ID)
    assert answer["error"]["type"] == "ProtocolVersionError"


def test_a_call_that_is_repeated_gets_the_stored_answer_and_another_one_is_refused(stranger):
    link = stranger.connect()
    session(link)
    first = ask(link, op="reset", i=0, seed=1)
    assert ask(link, op="reset", i=0, seed=1) == first
    stepped = ask(link, op="step", i=1, action="a")
    assert stepped["observation"] == "1:a"
    assert ask(link, op="step", i=1, action="a") == stepped
    for wrong in ({"i": 1, "action": "b"}, {"i": 0, "action": "a"}, {"i": 3, "action": "a"}, {"action": "a"}):
        assert ask(link, op="step", **wrong)["error"]["type"] == "StepIndexError"
    assert ask(link, op="step", i=2, action="a")["observation"] == "2:a"


def test_a_session_can_be_taken_up_by_another_connection_which_then_has_it(stranger):
    old, new = stranger.connect(), stranger.connect()
    session(old)
    ask(old, op="reset", i=0, seed=1)
    session(new, resume=True)
    assert ask(new, op="step", i=1, action="a")["observation"] == "1:a"
    with pytest.raises(ConnectionClosed):
        while True:
            old.recv(timeout=20)


@pytest.mark.parametrize(
    "frame",
    [
        random.Random(0).randbytes(1000),
        b"",
        b"\xff\xff\xff\xff",
        b"\x02\x00\x00\x00{}",
        "not json",
        "[1]",
        '{"op": NaN}',
        "[" * 100_000,
        '{"op": {"$array": ["object", [1], 0]}}',
        '{"op": {"$array": ["float64", [99999999999], 0]}}',
        "9" * 10_000,
    ],
    ids=lambda frame: repr(frame[:12]),
)
def test_garbage_ends_the_connection_with_a_reason_and_harms_no_other(stranger, frame):
    good, bad = stranger.connect(), stranger.connect()
    session(good)
    ask(good, op="reset", i=0, seed=1)
    bad.send(frame)
    assert json.loads(bad.recv(timeout=20))["error"]["type"] == "InvalidRequestError"
    with pytest.raises(ConnectionClosed):
        bad.recv(timeout=20)
    assert ask(good, op="step", i=1, action="a")["observation"] == "1:a"


@pytest.mark.parametrize(
    "message",
    [
        {"op": "open", "version": VERSION, "session": "../../etc"},
        {"op": "open", "version": VERSION, "session": 7},
        {"op": "step", "i": 0, "action": "a"},
        {"op": "no such"},
        {"op": ["step"]},
        {},
    ],
    ids=str,
)
def test_a_message_that_makes_no_sense_is_answered_with_why(stranger, message):
    assert ask(stranger.connect(), **message)["error"]["type"] == "InvalidRequestError"


def test_a_session_that_never_was_is_gone(stranger):
    answer = session(stranger.connect(), resume=True)
    assert answer["error"]["type"] == "EnvironmentGoneError"


def test_a_call_without_its_parts_is_an_error_of_the_call(stranger):
    link = stranger.connect()
    session(link)
    assert ask(link, op="reset", i=0, seed="seven")["error"]["type"]
    assert ask(link, op="step", i=1)["error"]["type"] == "InvalidRequestError"
    assert ask(link, op="ask", i=2, name="__class__")["error"]["type"] == "InvalidRequestError"


def test_a_hundred_megabytes_are_refused_by_their_header(stranger):
    link = stranger.connect()
    session(link)
    with pytest.raises(ConnectionClosed) as caught:
        link.send(b"x" * 100_000_000)
        link.recv(timeout=20)
    assert caught.value.rcvd is None or caught.value.rcvd.code == 1009
    assert ask(stranger.connect(), op="about", version=VERSION)["capacity"] == 64


@pytest.mark.parametrize("patience", [0.3])
@pytest.mark.parametrize("sent", [b"", b"GET / HTT", b"GET /v1/session HTTP/1.1\r\nHost: x\r\nUpgr"])
def test_a_request_that_never_ends_is_hung_up_on(stranger, sent):
    with socket.create_connection(stranger.address, timeout=20) as link:
        link.sendall(sent)
        assert link.recv(1000) == b""


@pytest.mark.parametrize("patience", [0.3])
def test_a_connection_that_opens_no_session_is_hung_up_on(stranger):
    link = stranger.connect()
    with pytest.raises(ConnectionClosed):
        link.recv(timeout=20)


def test_the_number_of_connections_is_limited(serve, connect):
    url = serve(capacity=1)
    envs = [connect(url) for _ in range(18)]
    with pytest.raises(Exception, match="too many connections"):
        connect(url, reconnect_seconds=0.05)
    envs[0].close()
    connect(url, reconnect_seconds=10)


def test_a_large_frame_that_takes_long_to_read_keeps_no_other_client_waiting(stranger, monkeypatch):
    reading, answered = threading.Event(), threading.Event()

    def slow_decode(frame):
        if len(frame) > 100_000:
            reading.set()
            answered.wait(20)
        return decode(frame)

    monkeypatch.setattr("tinkergym.serving.app.decode", slow_decode)
    link, other = stranger.connect(), stranger.connect()
    session(link)
    link.send(json.dumps({"op": "step", "i": 0, "action": "x" * 200_000}))
    assert reading.wait(20)
    other.send(json.dumps({"op": "about", "version": VERSION}))
    assert json.loads(other.recv(timeout=10))["version"] == VERSION
    answered.set()
    assert "error" in json.loads(link.recv(timeout=20))  # nothing was reset yet


def test_who_reads_nothing_of_its_answers_is_hung_up_on(serve, monkeypatch):
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
