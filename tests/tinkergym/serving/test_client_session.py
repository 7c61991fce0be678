"""Wires that are cut, calls that come twice, clients that fall silent."""

import socket

import pytest

from tinkergym.errors import EnvironmentGoneError, RemoteEnvironmentError, ServiceUnreachableError
from tinkergym.serving.server import listen


@pytest.fixture
def relay(serve, relays):
    return relays(serve())


def test_reconnects_and_continues_the_episode(relay, connect):
    env = connect(relay.url, reconnect_seconds=60)
    env.reset(seed=0)
    for number in range(1, 4):
        relay.cut()
        assert env.step("a")[0] == f"{number}:a"
    assert relay.connections == 4


@pytest.mark.parametrize("call", ["open", "reset", "step", "fail"])
def test_calls_once_though_the_answer_is_lost(relay, connect, call):
    env = connect(relay.url, reconnect_seconds=60).unwrapped
    if call != "open":
        first = env.reset(seed=0)
    relay.swallow_next_answer = True
    if call in ("open", "reset"):
        assert env.reset(seed=0)[0].startswith("number")
        assert env.step("a")[0] == "1:a"
    elif call == "step":
        assert env.step("a")[0] == "1:a"
        assert env.step("a")[0] == "2:a"
    else:
        with pytest.raises(RemoteEnvironmentError):
            env.step("raise")
        assert env.step("a")[0] == "2:a"
        assert env.reset(seed=0) == first
    assert not relay.swallow_next_answer


def test_raises_typed_error_when_patience_is_used_up(relay, connect):
    env = connect(relay.url, reconnect_seconds=0.1)
    env.reset(seed=0)
    relay.close()
    with pytest.raises(EnvironmentGoneError):
        env.step("a")
    with pytest.raises(EnvironmentGoneError):
        env.step("a")


def test_begins_another_session_after_an_idle_one_closed(serve, connect, wait_until, closed_environments):
    env = connect(serve(idle_timeout_seconds=1.0, capacity=1))
    closed = len(closed_environments)
    first = env.reset(seed=0)
    wait_until(lambda: len(closed_environments) > closed)
    with pytest.raises(EnvironmentGoneError):
        env.step("a")
    with pytest.raises(EnvironmentGoneError):
        env.reset()
    assert env.reset(seed=0) == first


def test_gives_up_silent_server_after_patience_by_the_clock(connect, monkeypatch):
    monkeypatch.setattr("tinkergym.serving.client_session._CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        with pytest.raises(ServiceUnreachableError):
            connect(f"ws://127.0.0.1:{mute.getsockname()[1]}", reconnect_seconds=0.1)
        mute.settimeout(0)
        tries = 0
        with pytest.raises(BlockingIOError):
            while True:
                mute.accept()[0].close()
                tries += 1
    assert tries == 2


def test_resets_with_seed_unaided_when_its_session_was_idle(serve, connect, wait_until, closed_environments):
    env = connect(serve(idle_timeout_seconds=1.0, capacity=1))
    closed = len(closed_environments)
    first = env.reset(seed=0)
    wait_until(lambda: len(closed_environments) > closed)
    assert env.reset(seed=0) == first


def test_frees_place_of_vanished_client_when_it_is_idle(serve, connect, relays):
    url = serve(idle_timeout_seconds=1.0, capacity=1)
    relay = relays(url)
    vanishing = connect(relay.url)
    vanishing.reset(seed=0)
    relay.close()
    connect(url, busy_seconds=120).reset(seed=0)


def test_notices_when_the_machine_of_a_client_vanished():
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
            idle, interval, count = (accepted.getsockopt(socket.IPPROTO_TCP, option) for option in options)
            assert idle + interval * count <= 30
