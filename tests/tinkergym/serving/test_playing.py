import pytest

from tinkergym.errors import (
    EnvironmentGoneError,
    EnvironmentTimeoutError,
    EpisodeProtocolError,
    InvalidRewardError,
    RemoteEnvironmentError,
)


@pytest.mark.parametrize(
    "processes",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.full("plays as in this process; `test_remote_env` has processes, too")
        ),
    ],
)
def test_returns_environments_traceback_and_keeps_the_session_alive(serve, connect, processes):
    # The child process does not know the classes of this test.
    env = connect(serve("CartPole-v1", processes=True) if processes else serve())
    env.reset(seed=0)
    if processes:
        with pytest.raises(RemoteEnvironmentError):
            env.step(7)
    else:
        with pytest.raises(
            RemoteEnvironmentError, match=r"(?s)step raised ValueError.*in reply.*not like this"
        ):
            env.step("raise")
        with pytest.raises(RemoteEnvironmentError):
            env.step("exit")
        with pytest.raises(RemoteEnvironmentError):
            env.reset(options={"fail": True})
    assert env.reset(seed=0)


def test_reports_reward_that_is_not_a_number_as_separate_error(serve, connect):
    env = connect(serve())
    env.reset(seed=0)
    for action in ("nan", "unknowable"):
        with pytest.raises(InvalidRewardError):
            env.step(action)
    with pytest.raises(RemoteEnvironmentError):
        env.step("odd info")


def test_ends_hanging_step_and_begins_another_by_reset(serve, connect):
    env = connect(serve(step_timeout_seconds=1.0, capacity=1))
    env.reset(seed=0)
    with pytest.raises(EnvironmentTimeoutError, match=r"(?s)step did not return within.*HANGS.wait"):
        env.step("hang")
    with pytest.raises(EnvironmentGoneError):
        env.step("on")
    env.reset(seed=0)
    assert env.step("on")[0] == "1:on"


def test_rejects_order_of_calls_that_makes_no_episode(serve, connect):
    env = connect(serve()).unwrapped
    with pytest.raises(EpisodeProtocolError):
        env.step("early")
    env.reset(seed=0)
    env.close()
    env.close()
    with pytest.raises(EpisodeProtocolError):
        env.step("late")
