"""Wires that are cut, calls that come twice, clients that fall silent."""

import pytest

from tinkergym.errors import EnvironmentGoneError


@pytest.fixture
def relay(serve, relays):
    return relays(serve())


def test_a_lost_connection_is_made_again_and_the_episode_goes_on(relay, connect):
    env = connect(relay.url, reconnect_seconds=10)
    env.reset(seed=0)
    for number in range(1, 4):
        relay.cut()
        assert env.step("a")[0] == f"{number}:a"
    assert relay.connections == 4


@pytest.mark.parametrize("call", ["open", "reset", "step", "fail"])
def test_a_call_whose_answer_is_lost_happens_once(relay, connect, call):
    env = connect(relay.url, reconnect_seconds=10).unwrapped
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
        with pytest.raises(Exception, match="does not like this"):
            env.step("raise")
        assert env.step("a")[0] == "2:a"
        assert env.reset(seed=0) == first
    assert not relay.swallow_next_answer


def test_a_server_that_stays_away_is_an_error_with_a_type_after_the_patience_is_used_up(relay, connect):
    env = connect(relay.url, reconnect_seconds=0.1)
    env.reset(seed=0)
    relay.close()
    with pytest.raises(EnvironmentGoneError, match="server is gone"):
        env.step("a")
    with pytest.raises(EnvironmentGoneError, match="call reset"):
        env.step("a")


def test_a_session_that_was_idle_too_long_is_closed_and_reset_with_a_seed_begins_another(
    serve, connect, wait_until, closed_environments
):
    env = connect(serve(idle_timeout_seconds=1.0, capacity=1))
    closed = len(closed_environments)
    first = env.reset(seed=0)
    wait_until(lambda: len(closed_environments) > closed)
    with pytest.raises(EnvironmentGoneError, match="idle for 1 s"):
        env.step("a")
    with pytest.raises(EnvironmentGoneError, match="random numbers"):
        env.reset()
    assert env.reset(seed=0) == first


def test_reset_with_a_seed_needs_no_help_when_its_session_was_idle(
    serve, connect, wait_until, closed_environments
):
    env = connect(serve(idle_timeout_seconds=1.0, capacity=1))
    closed = len(closed_environments)
    first = env.reset(seed=0)
    wait_until(lambda: len(closed_environments) > closed)
    assert env.reset(seed=0) == first


def test_a_client_that_vanished_loses_its_place_when_it_is_idle(serve, connect, relays):
    url = serve(idle_timeout_seconds=1.0, capacity=1)
    relay = relays(url)
    vanishing = connect(relay.url)
    vanishing.reset(seed=0)
    relay.close()
    connect(url, busy_seconds=30).reset(seed=0)
