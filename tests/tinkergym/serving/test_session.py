import json

import pytest
from websockets.exceptions import ConnectionClosed

from tinkergym.serving.wire_protocol import VERSION

ID = "0123456789abcdef" * 2


def ask(link, **message):
    link.send(json.dumps(message))
    return json.loads(link.recv(timeout=120))


def session(link, **more):
    return ask(link, op="open", version=VERSION, session=ID, **more)


def test_answers_repeated_call_from_store_and_rejects_another(stranger):
    link = stranger.connect()
    session(link)
    first = ask(link, op="reset", i=0, seed=1)
    assert ask(link, op="reset", i=0, seed=1) == first
    stepped = ask(link, op="step", i=1, action="a")
    assert stepped["observation"] == "1:a"
    assert ask(link, op="step", i=1, action="a") == stepped
    for wrong in ({"i": 1, "action": "b"}, {"i": 0, "action": "a"}, {"i": 3, "action": "a"}, {"action": "a"}):
        assert ask(link, op="step", **wrong)["error"]["type"] == "ConflictError"
    assert ask(link, op="step", i=2, action="a")["observation"] == "2:a"


def test_moves_session_to_another_connection_that_takes_it_up(stranger):
    old, new = stranger.connect(), stranger.connect()
    session(old)
    ask(old, op="reset", i=0, seed=1)
    session(new, resume=True)
    assert ask(new, op="step", i=1, action="a")["observation"] == "1:a"
    with pytest.raises(ConnectionClosed):
        while True:
            old.recv(timeout=120)


def test_calls_gone_a_session_that_never_was(stranger):
    answer = session(stranger.connect(), resume=True)
    assert answer["error"]["type"] == "EnvironmentGoneError"


def test_blames_call_for_its_missing_parts(stranger):
    link = stranger.connect()
    session(link)
    assert ask(link, op="reset", i=0, seed="seven")["error"]["type"]
    assert ask(link, op="step", i=1)["error"]["type"] == "InvalidRequestError"
    assert ask(link, op="ask", i=2, name="__class__")["error"]["type"] == "InvalidRequestError"
