"""Environments that do what they are told, and servers of them."""

import contextlib
import threading
import time
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from websockets.sync.client import connect as bare

import tinkergym as tg
from tests.environment_server import TOKEN, environment_server
from tests.relay import Relay
from tinkergym.errors import InvalidRewardError
from tinkergym.serving.wire_protocol import PATH

HANGS = threading.Event()
"""What `hang` waits for: never set while a test runs."""


class Obedient(tg.TextEnv):
    """Plays along until it is told something else."""

    metadata = {  # noqa: RUF012
        "render_modes": ["human", "ansi"],
        "render_fps": 1,
        "turns": "multi",
        "of_no_use": object(),
    }
    closed: ClassVar = []

    def start(self, options):
        self.steps = 0
        self.number = int(self.np_random.integers(1000))
        if options.get("fail"):
            raise RuntimeError("no such start")
        return f"number {self.number}"

    def reply(self, action):
        self.steps += 1
        match action:
            case "raise":
                raise ValueError("the env does not like this")
            case "exit":
                raise SystemExit(3)
            case "hang":
                HANGS.wait()
            case "nan":
                return "", float("nan"), False
            case "unknowable":
                raise InvalidRewardError("nobody can say")
            case "odd info":
                return "", 0.0, False, {"who": {1, 2}}
            case "long":
                return "x" * 50_000, 0.0, False
            case "end":
                return "", 1.0, True
        return f"{self.steps}:{action}", 0.5, False, {"metrics": {"steps": float(self.steps)}}

    def render(self):
        return f"at step {self.steps}"

    def gold_action(self):
        return "end"

    def close(self):
        self.closed.append(self)


class Pictures(gym.Env):
    """Shows an image and numbers, and takes an array."""

    observation_space = gym.spaces.Dict(
        {
            "image": gym.spaces.Box(0, 255, (8, 6, 3), np.uint8),
            "place": gym.spaces.Box(-10, 10, (2,), np.float32),
            "count": gym.spaces.Discrete(100),
        }
    )
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.zeros(2, np.float32)
        self.count = 0
        return self._look(), {"first": np.int64(7), "path": (1, 2)}

    def step(self, action):
        self.place = self.place + action
        self.count += 1
        return self._look(), float(self.place.sum()), self.count >= 5, False, {"worst": float("inf")}

    def _look(self):
        image = self.np_random.integers(0, 256, (8, 6, 3), np.uint8)
        return {"image": image, "place": self.place.copy(), "count": np.int64(self.count)}


tg.register("serving-test/Obedient-v0", Obedient)
tg.register("serving-test/Pictures-v0", Pictures)
OBEDIENT, PICTURES = "serving-test/Obedient-v0", "serving-test/Pictures-v0"


@pytest.fixture
def serve():
    """Start servers that end with the test, as a step does that hangs."""
    HANGS.clear()
    with contextlib.ExitStack() as stack:
        yield lambda environment_id=OBEDIENT, **settings: stack.enter_context(
            environment_server(environment_id, **settings)
        )
    HANGS.set()


@pytest.fixture
def connect():
    """Make remote environments that are closed with the test."""
    made = []

    def make(url, **kwargs):
        env = tg.make("tinkergym/Remote-v0", url=url, **{"token": TOKEN, "reconnect_seconds": 0.3, **kwargs})
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()


@pytest.fixture
def wait_until():
    """Wait for something that another thread is about to do."""
    return _wait_until


def _wait_until(happened, seconds=60.0):
    ends_at = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < ends_at, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def relays():
    """Lay wires that can be cut, between a client and a server's URL."""
    laid = []

    def lay(url):
        laid.append(Relay(url))
        return laid[-1]

    yield lay
    for relay in laid:
        relay.close()


@pytest.fixture
def closed_environments():
    """The obedient environments that were closed, so far and from now on."""
    return Obedient.closed


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
