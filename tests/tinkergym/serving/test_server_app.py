"""What no decent client sends. Each time the server answers or hangs up, and serves the next one."""

import json
import random

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.environment_server import TOKEN
from tinkergym.serving.wire_protocol import VERSION

ID = "0123456789abcdef" * 2


def ask(link, **message):
    link.send(json.dumps(message))
    return json.loads(link.recv(timeout=120))


def session(link, **more):
    return ask(link, op="open", version=VERSION, session=ID, **more)


def test_denies_connection_without_the_token(stranger):
    for token in (None, "wrong", TOKEN + "x", "", "ü"):
        with pytest.raises((InvalidStatus, UnicodeEncodeError)) as caught:
            stranger.connect(token)
        if isinstance(caught.value, InvalidStatus):
            assert caught.value.response.status_code == 401


def test_rejects_another_version_by_name(stranger):
    answer = ask(stranger.connect(), op="open", version=99, session=ID)
    assert answer["error"]["type"] == "VersionMismatchError"


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
def test_ends_connection_with_reason_on_garbage_without_harming_others(stranger, frame):
    good, bad = stranger.connect(), stranger.connect()
    session(good)
    ask(good, op="reset", i=0, seed=1)
    bad.send(frame)
    assert json.loads(bad.recv(timeout=120))["error"]["type"] == "InvalidRequestError"
    with pytest.raises(ConnectionClosed):
        bad.recv(timeout=120)
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
def test_answers_senseless_message_with_why(stranger, message):
    assert ask(stranger.connect(), **message)["error"]["type"] == "InvalidRequestError"
