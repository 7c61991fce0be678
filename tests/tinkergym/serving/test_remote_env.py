"""A remote environment as its user meets it, against a real server on a real socket."""

import os
import pickle
import threading
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import tinkergym as tg
from tests.environment_server import TOKEN
from tinkergym.errors import (
    EnvironmentBusyError,
    EnvironmentGoneError,
    InvalidRequestError,
    PayloadTooLargeError,
    RemoteEnvironmentError,
)

PICTURES = "serving-test/Pictures-v0"


BOARD = "board/TicTacToeVs-v0"


def episode(env, seed, actions):
    record = [env.reset(seed=seed)]
    for action in actions:
        record.append(env.step(action))
        if record[-1][2] or record[-1][3]:
            break
    return record


def assert_same(here, there):
    """Equal, with equal types all the way down."""
    assert type(here) is type(there)
    if isinstance(here, dict):
        assert list(here) == list(there)
        for key in here:
            assert_same(here[key], there[key])
    elif isinstance(here, list | tuple):
        assert len(here) == len(there)
        for one, other in zip(here, there, strict=True):
            assert_same(one, other)
    elif isinstance(here, np.ndarray):
        assert here.dtype == there.dtype
        np.testing.assert_array_equal(here, there)
    else:
        assert here == there


@pytest.mark.parametrize("environment_id", [BOARD, PICTURES, "serving-test/Obedient-v0"])
def test_passes_gymnasiums_checker(serve, environment_id):
    env = gym.make("tinkergym/Remote-v0", url=serve(environment_id), token=TOKEN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("processes", [False, True])
def test_plays_episodes_of_same_environment_here(serve, connect, processes):
    here, there = tg.make(BOARD), connect(serve(BOARD, processes=processes))
    for seed in range(5):
        actions = [f"{column}{row}" for column in "abc" for row in "123"]
        np.random.default_rng(seed).shuffle(actions)
        assert_same(episode(here, seed, actions), episode(there, seed, actions))
    # And on with the same random numbers, without a seed.
    assert_same(episode(here, None, ["b2"]), episode(there, None, ["b2"]))


def test_restores_arrays_and_numbers_with_their_types(serve, connect):
    here, there = tg.make(PICTURES), connect(serve(PICTURES))
    assert there.observation_space == here.observation_space
    assert there.action_space == here.action_space
    actions = [np.array([0.25, -1], np.float32)] * 5
    assert_same(episode(here, 3, actions), episode(there, 3, actions))


def test_takes_spaces_metadata_and_methods_from_server(serve, connect):
    env = connect(serve())
    assert env.action_space == tg.spaces.Text()
    assert env.metadata["turns"] == "multi"
    assert "of_no_use" not in env.metadata
    assert env.metadata["render_modes"] == ["ansi"]
    env.reset(seed=1)
    assert env.unwrapped.gold_action() == "end"
    assert env.unwrapped.legal_actions() is None


def test_delivers_hostile_text_as_it_was_sent(serve, connect):
    env = connect(serve())
    env.reset(seed=0)
    for action in ["\ud800", "\x00", '{"$tuple": [1]}', '"$', "日本語 🙂", "a" * 100_000]:
        assert env.step(action)[0].partition(":")[2] == action


def test_draws_picture_there(serve, connect):
    env = connect(serve(), render_mode="ansi")
    env.reset(seed=1)
    env.step("a")
    assert env.render() == "at step 1"
    with pytest.raises(InvalidRequestError) as caught:
        connect(serve(), render_mode="human")
    assert caught.value.field == "render_mode"


def test_rejects_too_long_messages_and_loses_nothing(serve, connect):
    env = connect(serve(max_message_bytes=20_000))
    env.reset(seed=0)
    with pytest.raises(PayloadTooLargeError):
        env.step("y" * 30_000)
    with pytest.raises(RemoteEnvironmentError):
        env.step("long")
    assert env.step("on")[0] == "2:on"


@pytest.mark.parametrize("url", ["http://h:1", "ws://", "ws://u:p@h:1", "ws://h:99999", "ws://h/?q=1", 7])
def test_rejects_invalid_address(connect, url):
    with pytest.raises(InvalidRequestError) as caught:
        connect(url)
    assert caught.value.field == "url"


def test_reports_full_server_and_takes_place_that_becomes_free(serve, connect):
    url = serve(capacity=1)
    first, second = connect(url), connect(url)
    first.reset(seed=0)
    with pytest.raises(EnvironmentBusyError) as caught:
        second.reset(seed=0)
    assert 0 < caught.value.retry_after_seconds <= 1
    patient = connect(url, busy_seconds=120)
    closer = threading.Timer(0.2, first.close)
    closer.start()
    patient.reset(seed=0)
    assert patient.step("a")[0] == "1:a"
    closer.join()


def test_shares_places_by_episode_between_more_environments_in_turns(serve, connect):
    url = serve(capacity=2)
    envs = [connect(url, hold="episode", busy_seconds=120) for _ in range(6)]
    records = {}

    def play(number):
        records[number] = [episode(envs[number], seed, ["a", "end"]) for seed in range(3)]

    threads = [threading.Thread(target=play, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [records[number] for number in range(6)] == [records[0]] * 6


def test_pickles_environment_for_the_server_and_not_for_the_episode(serve, connect):
    env = connect(serve())
    env.reset(seed=4)
    copy = pickle.loads(pickle.dumps(env.unwrapped))
    with pytest.raises(EnvironmentGoneError):
        copy.step("a")
    assert copy.reset(seed=4) == env.reset(seed=4)
    assert copy.step("a") == env.step("a")
    copy.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_opens_own_session_after_a_fork(serve, connect):
    env = connect(serve()).unwrapped
    first = env.reset(seed=4)
    env.step("one")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            try:
                env.step("mine")
            except EnvironmentGoneError:
                code = 0 if env.reset(seed=4) == first and env.step("x")[0] == "1:x" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert env.step("two")[0] == "2:two"


def test_counts_every_step_once_over_several_threads(serve, connect):
    env = connect(serve()).unwrapped
    env.reset(seed=0)
    seen = []
    threads = [
        threading.Thread(target=lambda: seen.extend(env.step("t")[0] for _ in range(20))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(f"{n}:t" for n in range(1, 101))


def test_registers_with_gymnasium_whichever_is_imported_first():
    import subprocess
    import sys

    for order in ("import tinkergym, gymnasium", "import gymnasium, tinkergym"):
        code = f"{order}\nassert 'tinkergym/Remote-v0' in gymnasium.registry"
        subprocess.run([sys.executable, "-c", code], check=True)
