"""The bridge to OpenEnv, against a counterpart of its server; `test_openenv_package.py` has the real one."""

import contextlib
import itertools
import json
import re
import socket
import threading

import pytest

from tests.tinkergym.bridges.openenv_counterpart import TWO_FIELDS, Counterpart
from tinkergym.bridges.openenv import OpenEnvEnv
from tinkergym.bridges.openenv_wire import OpenEnvAddress, read_schema
from tinkergym.errors import (
    EnvironmentBusyError,
    EnvironmentGoneError,
    EpisodeProtocolError,
    InvalidRequestError,
    InvalidRewardError,
    RemoteAnswerError,
    RemoteEnvironmentError,
    ServiceUnreachableError,
)
from tinkergym.testing.contract import EnvContract


@pytest.fixture
def server():
    with Counterpart() as counterpart:
        yield counterpart


def number_in(observation):
    return re.search(r"says (\d)", observation)[1]


class TestTheContract(EnvContract):
    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.server = server

    def make(self):
        return OpenEnvEnv(self.server.url)


def test_plays_the_environments_own_episode(server):
    env = OpenEnvEnv(server.url, observation_fields=["text"])
    observation, _ = env.reset(seed=3)
    assert server.seeds == [3]
    observation, reward, terminated, truncated, info = env.step(number_in(observation))
    assert (reward, terminated, truncated, info["metrics"]) == (1.0, False, False, {"malformed_actions": 0.0})
    assert observation.startswith("counterpart of OpenEnv")
    assert env.step("x")[1:3] == (0.0, True)
    with pytest.raises(EpisodeProtocolError):
        env.step("0")
    assert env.reset(seed=3)[0] == env.reset(seed=3)[0]
    env.close()


def test_shows_several_fields_by_name_and_writes_them_as_json():
    with Counterpart(schema=TWO_FIELDS) as server:
        env = OpenEnvEnv(server.url)
        assert "volume" in env.metadata["system_prompt"]
        observation, _ = env.reset(seed=1)
        assert observation.splitlines()[1] == "left: 2"
        said, reward, terminated, _, info = env.step("louder")
        assert (reward, terminated, info["metrics"]["malformed_actions"]) == (0.0, False, 1.0)
        assert "JSON object" in said
        # What only the server can tell is said by the server.
        refused, *_, info = env.step(json.dumps({"message": 4, "volume": 1}))
        assert "valid string" in refused
        assert info["metrics"]["malformed_actions"] == 1.0
        # Metadata is for programs, so a policy is neither shown it nor may set it.
        unknown, *_, info = env.step(json.dumps({"message": "4", "volume": 1, "metadata": {"a": 1}}))
        assert "no field 'metadata'" in unknown
        assert info["metrics"]["malformed_actions"] == 1.0
        assert env.step(json.dumps({"message": number_in(observation), "volume": 1}))[1] == 1.0
        env.close()


def test_gives_other_fields_only_to_a_schema_allowing_them():
    for allowed in (False, True):
        action = TWO_FIELDS["action"] | {"additionalProperties": allowed}
        with Counterpart(schema=TWO_FIELDS | {"action": action}) as server:
            env = OpenEnvEnv(server.url)
            number = number_in(env.reset(seed=1)[0])
            said, reward, *_ = env.step(json.dumps({"message": number, "volume": 1, "tone": 2}))
            assert ("no field 'tone'" in said, reward) == (not allowed, float(allowed))
            assert "no field 'metadata'" in env.step('{"message": "1", "volume": 1, "metadata": {}}')[0]
            env.close()


def test_chooses_one_field():
    with Counterpart(schema=TWO_FIELDS) as server:
        env = OpenEnvEnv(server.url, action_field="message")
        assert "system_prompt" not in env.metadata
        assert env.step(number_in(env.reset(seed=1)[0]))[1] == 1.0
        for wrong in ({"action_field": "loudness"}, {"observation_fields": ["smell"]}, {"hold": "forever"}):
            with pytest.raises(InvalidRequestError) as error:
                OpenEnvEnv(server.url, **wrong)
            assert error.value.field in wrong
        env.close()


@pytest.mark.parametrize(
    ("action", "error"),
    [
        ("break", RemoteEnvironmentError),
        ("hang up", EnvironmentGoneError),
        ("nonsense", RemoteAnswerError),
        ("huge", InvalidRewardError),
    ],
)
def test_loses_episode_without_reward_on_a_failure_there(server, action, error):
    env = OpenEnvEnv(server.url)
    env.reset(seed=0)
    with pytest.raises(error):
        env.step(action)
    assert env.step(number_in(env.reset(seed=0)[0]))[1] == 1.0
    env.close()


def test_takes_turns_with_more_environments_than_places():
    with Counterpart(places=1) as server:
        returns = []

        def play(seed):
            env = OpenEnvEnv(server.url)
            observation, over, total = env.reset(seed=seed)[0], False, 0.0
            while not over:
                observation, reward, over, *_ = env.step(number_in(observation))
                total += reward
            returns.append(total)

        threads = [threading.Thread(target=play, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert returns == [2.0] * 4
        assert server.most_sessions == 1


def test_says_what_to_do_when_server_stays_full():
    with Counterpart(places=1) as server:
        first, second = OpenEnvEnv(server.url), OpenEnvEnv(server.url, busy_seconds=0.0)
        first.reset(seed=0)
        with pytest.raises(EnvironmentBusyError):
            second.reset(seed=0)
        first.close()


def test_says_in_one_sentence_that_no_server_is_there(server):
    gone = server.url.replace(server.url.rsplit(":", 1)[1], "9")
    with pytest.raises(ServiceUnreachableError) as error:
        OpenEnvEnv(gone)
    assert error.value.field == "url"
    with pytest.raises(InvalidRequestError) as error:
        OpenEnvEnv(f"{server.url}/elsewhere")
    assert error.value.field == "url"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1",
        "http://127.0.0.1:many",
        "http://[::1",
        "http://a..b",
        f"http://{'a' * 70}.com",
        "http://127.0.0.1:9/\u00fc",
        "http://127.0.0.1:9/a b",
        "http://127.0.0.1:9/\r\nX: y",
        "http://exa mple",
        "http://\ud800",
        5,
    ],
)
def test_rejects_impossible_address(url):
    with pytest.raises(InvalidRequestError) as error:
        OpenEnvEnv(url)
    assert error.value.field == "url"


@pytest.mark.parametrize("properties", [["message"], "message", 5])
def test_rejects_schema_whose_fields_cannot_be_read(properties):
    schema = {"action": {"properties": properties}}
    with Counterpart(schema=schema) as server, pytest.raises(InvalidRequestError) as error:
        OpenEnvEnv(server.url)
    assert error.value.field == "url"


@pytest.mark.parametrize("anything", [True, {}, None])
def test_passes_the_policys_text_for_a_field_of_any_type(anything):
    with Counterpart(schema={"action": {"properties": {"message": anything}}}) as server:
        env = OpenEnvEnv(server.url, action_field="message")
        assert env.step(number_in(env.reset(seed=1)[0]))[1] == 1.0
        env.close()


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_treats_number_that_json_lacks_as_malformed_action(number):
    schema = {"action": {"properties": {"message": {"type": "number"}}}}
    with Counterpart(schema=schema) as server:
        env = OpenEnvEnv(server.url)
        env.reset(seed=1)
        said, reward, over, _, info = env.step(number)
        assert (reward, over, info["metrics"]) == (0.0, False, {"malformed_actions": 1.0})
        assert "Write a JSON number" in said
        env.close()


def test_treats_object_with_number_that_json_lacks_as_malformed():
    with Counterpart(schema=TWO_FIELDS) as server:
        env = OpenEnvEnv(server.url)
        env.reset(seed=1)
        info = env.step('{"message": "1", "volume": 1e999}')[4]
        assert info["metrics"] == {"malformed_actions": 1.0}
        env.close()


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def answer_once(server, *parts):
    """Answer a request with the parts of a body, as they are given."""

    def answer():
        with server.accept()[0] as connection, contextlib.suppress(OSError):
            connection.recv(2**16)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for part in itertools.chain(*parts):
                connection.sendall(part)

    threading.Thread(target=answer, daemon=True).start()
    return OpenEnvAddress.parse(f"http://127.0.0.1:{server.getsockname()[1]}")


def test_rejects_schema_that_is_nested_too_deeply(listening):
    address = answer_once(listening, [b"[" * 900_000])
    with pytest.raises(InvalidRequestError) as error:
        read_schema(address, timeout_seconds=120.0)
    assert error.value.field == "url"
