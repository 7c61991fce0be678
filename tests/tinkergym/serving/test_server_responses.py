"""What no decent server answers. The client raises an error with a type, and goes on."""

from __future__ import annotations

import json
import socket
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve as bare

from tinkergym.errors import InvalidRewardError, RemoteAnswerError, TinkerGymError, VersionMismatchError
from tinkergym.serving.remote_env import RemoteEnv
from tinkergym.serving.wire_protocol import VERSION, encode
from tinkergym.spaces import Text, space_to_json

TEXT = space_to_json(Text(20))
ABOUT = {
    "version": VERSION,
    "environment": {
        "observation_space": TEXT,
        "action_space": TEXT,
        "id": "x/Y-v0",
        "metadata": {"render_modes": []},
        "offers": ["gold_action", "legal_actions"],
    },
    "step_timeout_seconds": 5.0,
    "max_message_bytes": 10_000,
}
STEP = {"observation": "go", "reward": 0.5, "terminated": False, "truncated": False, "info": {}}
SOUND = {
    "about": ABOUT,
    "open": {"step_timeout_seconds": 5.0, "max_message_bytes": 10_000},
    "reset": {"observation": "go", "info": {}},
    "step": STEP,
    "ask": {"value": None},
    "close": {"closed": True},
}


class Hostile:
    """A server that answers as it should, but for what a test puts into `answers`."""

    def __init__(self):
        self.answers = {}
        self._server = bare(self._talk, "127.0.0.1", 0, compression=None, max_size=None)
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _talk(self, link):
        try:
            for frame in link:
                asked = json.loads(frame)
                op = asked["op"]
                answer = self.answers.get(op, SOUND[op])
                if isinstance(answer, dict):
                    own = {"i": asked["i"]} if "i" in asked else {}
                    own |= {"session": asked["session"]} if op == "open" else {}
                    answer = encode({**own, **answer})
                link.send(answer)
        except ConnectionClosed:
            pass

    def close(self):
        self._server.shutdown()


@pytest.fixture(scope="module")
def hostile():
    server = Hostile()
    yield server
    server.close()


def play(url):
    env = RemoteEnv(url, token="t", reconnect_seconds=0.0)
    try:
        first = env.reset(seed=0)
        step = env.step("a")
        return first, step, env.gold_action(), env.legal_actions()
    finally:
        env.close()


def without(answer, name):
    return {key: value for key, value in answer.items() if key != name}


def about(**changes):
    return {**ABOUT, "environment": {**ABOUT["environment"], **changes}}


BOX = {"space": "box", "dtype": "float32", "shape": [10**6, 10**6], "low": 0, "high": 1}
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("op", "answer"),
    [
        ("about", "[]"),
        ("about", "{"),
        ("about", DEEP),
        ("about", b"\xff\xff\xff\xff{}"),
        ("about", without(ABOUT, "environment")),
        ("about", {**ABOUT, "step_timeout_seconds": 1e300}),
        ("about", {**ABOUT, "step_timeout_seconds": -1}),
        ("about", {**ABOUT, "max_message_bytes": 10**400}),
        ("about", {**ABOUT, "max_message_bytes": True}),
        ("about", about(observation_space=BOX)),
        ("about", about(action_space="text")),
        ("about", about(metadata=[])),
        ("about", about(metadata={"render_modes": 3})),
        ("about", about(offers=[["gold_action"]])),
        ("about", about(id=None)),
        ("about", {"error": "no"}),
        ("open", {"session": "0" * 32}),
        ("open", {"step_timeout_seconds": "5"}),
        ("reset", {"observation": "go"}),
        ("reset", {"observation": 5, "info": {}}),
        ("reset", {"observation": "x" * 21, "info": {}}),
        ("reset", {"observation": np.zeros(3), "info": {}}),
        ("reset", {"observation": "go", "info": []}),
        ("reset", {"i": 7, "observation": "go", "info": {}}),
        ("reset", {"i": True, "observation": "go", "info": {}}),
        ("reset", {"i": None, "observation": "go", "info": {}}),
        ("step", {**STEP, "i": 0}),
        ("step", {**STEP, "reward": "1"}),
        ("step", {**STEP, "reward": True}),
        ("step", {**STEP, "reward": float("nan")}),
        ("step", {**STEP, "reward": 10**400}),
        ("step", {**STEP, "terminated": 1}),
        ("step", {**STEP, "truncated": None}),
        ("step", {"error": ["no"]}),
        ("step", {"i": 99, "error": {"type": "InvalidRewardError", "message": "no"}}),
        ("ask", {"value": 3}),
        ("ask", {"value": {"a": 1}}),
        ("ask", {}),
    ],
)
def test_ends_session_after_an_answer_breaks_the_protocol(hostile, op, answer):
    hostile.answers = {op: answer}
    with pytest.raises(RemoteAnswerError):
        play(hostile.url)
    hostile.answers = {}
    assert play(hostile.url) == (("go", {}), ("go", 0.5, False, False, {}), None, None)


def test_takes_no_later_answer_after_a_wrong_one(hostile):
    hostile.answers = {}
    env = RemoteEnv(hostile.url, token="t", reconnect_seconds=0.0)
    env.reset(seed=0)
    hostile.answers = {"step": {**STEP, "i": 99}}
    with pytest.raises(RemoteAnswerError):
        env.step("a")
    hostile.answers = {}
    with pytest.raises(TinkerGymError):
        env.step("a")
    assert env.reset(seed=0) == ("go", {})
    env.close()


def test_names_server_of_another_version(hostile):
    hostile.answers = {"about": {**ABOUT, "version": 2}}
    with pytest.raises(VersionMismatchError):
        play(hostile.url)


def test_keeps_type_of_errors_and_cuts_text(hostile):
    hostile.answers = {"step": {"error": {"type": "InvalidRewardError", "message": "x" * 10**6}}}
    with pytest.raises(InvalidRewardError) as caught:
        play(hostile.url)
    assert len(str(caught.value)) < 100_000


@pytest.mark.parametrize("seconds", [float("inf"), -5, "soon", None, 10**400])
def test_bounds_clients_waiting_for_a_busy_server_without_failing(hostile, seconds):
    busy = {"error": {"type": "EnvironmentBusyError", "message": "full"}, "retry_after_seconds": seconds}
    hostile.answers = {"open": busy}
    with pytest.raises(TinkerGymError) as caught:
        play(hostile.url)
    assert 0 < caught.value.retry_after_seconds <= 60


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(op=st.sampled_from(["about", "open", "reset", "step", "ask"]), data=st.data())
def test_reads_any_field_as_its_type_or_an_error(hostile, op, data):
    names = [*SOUND[op], "i", "error", "session", "$blobs"]
    changed = data.draw(st.dictionaries(st.sampled_from(names), JSON, min_size=1, max_size=2))
    hostile.answers = {
        op: json.dumps({"i": {"reset": 0, "step": 1, "ask": 2}.get(op), **SOUND[op], **changed})
    }
    try:
        first, step, *_ = play(hostile.url)
    except TinkerGymError:
        return
    assert isinstance(first[0], str)
    assert [type(part) for part in step] == [str, float, bool, bool, dict]


@pytest.mark.parametrize(
    "words",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b'HTTP/1.1 401 No\r\nContent-Length: 14\r\n\r\n{"error": "no"}',
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"\x00" * 100_000,
        b"",
    ],
)
def test_raises_typed_error_on_wrong_answer_to_the_handshake(words):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk():
            link, _ = listener.accept()
            with link:
                link.recv(65536)
                link.sendall(words)

        thread = threading.Thread(target=talk)
        thread.start()
        with pytest.raises(TinkerGymError):
            RemoteEnv(f"ws://127.0.0.1:{listener.getsockname()[1]}", token="t", reconnect_seconds=0.0)
        thread.join()
