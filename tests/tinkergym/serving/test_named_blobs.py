"""Bytes that are shown again, and travel once."""

import json

import gymnasium as gym
import numpy as np
import pytest

import tinkergym as tg
from tests.environment_server import TOKEN
from tinkergym.errors import InvalidRequestError
from tinkergym.serving.connection import EnvConnection
from tinkergym.serving.named_blobs import SEEN, SeenBlobs, SentBlobs, contents, named
from tinkergym.serving.wire_protocol import decode, encode, join_frame, split_frame

LARGE, OTHER, SMALL = (np.full((20, 30, 3), shade, np.uint8) for shade in (1, 2, 3))
SMALL = SMALL[:2, :2]


class Gallery(gym.Env):
    """Shows one picture in each episode of a seed, and again after each action."""

    observation_space = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.picture = self.np_random.integers(0, 256, (32, 32, 3), np.uint8)
        return self.picture, {}

    def step(self, action):
        return self.picture, 0.0, False, False, {}


tg.register("serving-test/Gallery-v0", Gallery)


@pytest.fixture
def received(monkeypatch):
    """The frames that this process was sent."""
    frames = []
    exchange = EnvConnection.exchange

    def noted(self, frame, timeout_seconds):
        frames.append(exchange(self, frame, timeout_seconds))
        return frames[-1]

    monkeypatch.setattr(EnvConnection, "exchange", noted)
    SEEN.forget()
    return frames


def test_sends_groups_picture_once_to_each_of_its_episodes(serve, received):
    url = serve("serving-test/Gallery-v0")
    here = Gallery()
    for _ in range(4):
        env = tg.make("tinkergym/Remote-v0", url=url, token=TOKEN)
        for seed in (3, 4):
            expected, _ = here.reset(seed=seed)
            for shown in (env.reset(seed=seed)[0], env.step(1)[0], env.step(0)[0]):
                np.testing.assert_array_equal(shown, expected)
        env.close()
    assert sum(map(len, received)) < 2 * (32 * 32 * 3) + 20_000
    # Another process has seen nothing, and asks for what it lacks.
    SEEN.forget()
    received.clear()
    env = tg.make("tinkergym/Remote-v0", url=url, token=TOKEN)
    for shown in (env.reset(seed=4)[0], env.step(1)[0]):
        np.testing.assert_array_equal(shown, expected)
    env.close()
    assert sum(len(frame) > 32 * 32 * 3 for frame in received) == 1


def test_names_by_hash_and_finds_what_was_sent_before():
    sent, seen = SentBlobs(), SeenBlobs()
    message = {"observation": [LARGE, SMALL, LARGE], "info": {"raw": b"y" * 300}}
    for number, expected_hashes in enumerate([1, 2]):
        frame, shown = named(encode(message), sent)
        hashes, came = contents(frame)
        seen.add(came)
        assert len(hashes) == expected_hashes
        assert set(hashes) <= shown.keys()
        found = decode(frame, seen.find(hashes))
        np.testing.assert_array_equal(found["observation"][2], LARGE)
        np.testing.assert_array_equal(found["observation"][1], SMALL)
        assert found["info"] == message["info"], number
    assert named('{"i":0}', sent) == ('{"i":0}', {})


@pytest.mark.parametrize("entry", ["ab" * 32, "", True, -1, 1.0, None])
def test_rejects_frame_that_names_what_is_not_known(entry):
    head, blobs = split_frame(encode({"observation": LARGE}))
    head["$blobs"] = [entry]
    with pytest.raises(InvalidRequestError):
        decode(join_frame(head, [] if isinstance(entry, str) else blobs), {"cd" * 32: b"x"})


def test_bounds_memory_that_short_frame_takes_by_repeated_names():
    head = {"values": [{"$bytes": number} for number in range(30)], "$blobs": ["ab" * 32] * 30}
    with pytest.raises(InvalidRequestError, match="bytes"):
        decode(join_frame(head, []), {"ab" * 32: b"x" * 1000}, most_blob_bytes=10_000)


def test_bounds_what_is_kept_and_noted():
    seen = SeenBlobs(most_bytes=1000)
    seen.add({"a": b"x" * 600})
    seen.add({"b": b"y" * 600})
    assert seen.find(["a", "b"]).keys() == {"b"}
    sent = SentBlobs(most=1)
    assert [sent.note("a"), sent.note("a"), sent.note("b"), sent.note("a")] == [False, True, False, False]


def test_sends_everything_to_client_that_knows_no_hashes(serve):
    from websockets.sync.client import connect

    from tinkergym.serving.wire_protocol import PATH, VERSION

    url = serve("serving-test/Gallery-v0")
    for _ in range(2):
        with connect(url + PATH, additional_headers={"Authorization": f"Bearer {TOKEN}"}) as wire:
            session = np.random.default_rng().bytes(16).hex()
            wire.send(json.dumps({"op": "open", "version": VERSION, "session": session}))
            wire.recv()
            wire.send(json.dumps({"op": "reset", "i": 0, "seed": 5, "options": None}))
            assert decode(wire.recv())["observation"].shape == (32, 32, 3)
            wire.send(json.dumps({"op": "blobs", "hashes": ["ab" * 32]}))
            assert "error" in decode(wire.recv())
