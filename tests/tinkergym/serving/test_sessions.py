"""Places of a server are given back when an episode ends, whoever ended it, and when a client vanishes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.environment_server import TOKEN
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.registration.environments import make_environment
from tinkergym.rollout.executors import ProcessExecutor, ThreadExecutor
from tinkergym.rollout.play_list import play
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.testing import ScriptedSampler, byte_bundle
from tinkergym.trajectory.trajectory import StopReason

RENDERER = Renderer.from_bundle(byte_bundle())
LIMITS = {
    StopReason.TURN_LIMIT: Limits(max_turns=2),
    StopReason.TOKEN_LIMIT: Limits(max_episode_tokens=3),
}


def reasons(url, executor, *, limits):
    choices = {"url": url, "token": TOKEN, "hold": "episode", "busy_seconds": 120.0}
    plans = [
        EpisodePlan(
            episode_id=f"e{seed}",
            seed=seed,
            policy="p",
            decoding=Decoding(max_turn_tokens=8),
            environment=EnvironmentRef(id="tinkergym/Remote-v0", kwargs=choices),
            limits=limits,
        )
        for seed in range(6)
    ]
    results = play(
        plans,
        sampler=ScriptedSampler(RENDERER, lambda prompt: "a"),
        renderer=RENDERER,
        make_env=make_environment,
        executor=executor,
    )
    return Counter(result.trajectory.stop_reason for result in results)


@pytest.mark.parametrize(
    ("reason", "executor"),
    [
        *((reason, ThreadExecutor) for reason in LIMITS),
        pytest.param(StopReason.TURN_LIMIT, ProcessExecutor, marks=pytest.mark.full("as in threads")),
    ],
)
def test_gives_place_of_ended_episode_to_another_environment(serve, executor, reason):
    # All environments are kept for further episodes, so each would keep its place, too.
    url = serve(capacity=1)
    assert reasons(url, executor(2), limits=LIMITS[reason]) == {reason: 6}


def test_frees_vanished_clients_place_after_its_lease(serve, connect, relays):
    url = serve(lease_seconds=0.2, idle_timeout_seconds=300.0, capacity=1)
    relay = relays(url)
    vanishing = connect(relay.url)
    vanishing.reset(seed=0)
    relay.close()
    connect(url, busy_seconds=120).reset(seed=0)


def test_keeps_place_of_connected_client_however_long_it_thinks(serve, connect):
    url = serve(lease_seconds=0.05, capacity=2)
    thinking, vanishing = connect(url), connect(url)
    thinking.reset(seed=0)
    vanishing.reset(seed=0)
    vanishing.unwrapped._session.forget()
    connect(url, busy_seconds=120).reset(seed=0)  # a lease has run out meanwhile, but not the other one's
    assert thinking.step("a")[0] == "1:a"
