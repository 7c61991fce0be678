"""Games of two policies while processes are killed with -9: what is stored, and which bits result.

First the environment worker, mid-game, in 20 steps of one job: each game of each step must be stored once,
with both seats. Then each process of the service once at step 3 of a deterministic job: both adapters must
equal those of an undisturbed run.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

import tinkergym as tg
from benchmarks.common import Figure, Service, service, write_result
from benchmarks.determinism import PARTS, kill_if_there
from tinkergym.schema.events import StepEvent

GAME = "board/TicTacToe-v0"
AGENTS = ("x", "o")
KILLS = int(os.environ.get("TINKERGYM_BENCHMARK_KILLS", "20"))
STEPS, KILL_AT = 5, 3
GROUPS, GROUP_SIZE = 8, 8
_PAUSE_SECONDS = 0.05
_PATIENCE_SECONDS = 60.0


def measure() -> list[Figure]:
    """Kill, count and compare."""
    counted = _mid_game_kills()
    hashes = {"undisturbed": _hashes(None)}
    for part in PARTS:
        hashes[f"{part} killed at step {KILL_AT}"] = _hashes(part)
        print(part, hashes[f"{part} killed at step {KILL_AT}"] == hashes["undisturbed"], flush=True)
    distinct = {tuple(sorted(one.items())) for one in hashes.values()}
    figures = [
        Figure(
            what=f"environment worker killed in mid-game, {counted['kills']} times, two policies",
            asked="nothing lost or counted twice",
            measured=f"{counted['games']} of {counted['expected']} games stored, {counted['twice']} twice, "
            f"{counted['lost_seats']} seats missing, {counted['failed']} failed, "
            f"{counted['unequal']} not zero-sum",
            reached=counted["kills"] == KILLS
            and counted["games"] == counted["expected"]
            and not any(counted[name] for name in ("twice", "lost_seats", "failed", "unequal")),
        ),
        Figure(
            what=f"two policies, deterministic, each process killed once at step {KILL_AT} "
            f"({', '.join(PARTS)})",
            asked="bit-equal adapters",
            measured=f"{len(hashes)} runs, {len(distinct)} distinct pair(s) of hashes",
            reached=len(distinct) == 1,
        ),
    ]
    return write_result("game_kills", figures, {"mid_game": counted, "sha256": hashes})


def _settings(**more: Any) -> dict[str, Any]:
    return {
        "env_kwargs": {"on_illegal": "random"},
        "agents": {agent: tg.Train() for agent in AGENTS},
        "algorithm": tg.GRPO(group_size=GROUP_SIZE, groups_per_step=GROUPS, learning_rate=3e-3),
        "sampling": tg.Sampling(max_turn_tokens=8),
        "checkpoint_every": 2,
        **more,
    }


def _mid_game_kills() -> dict[str, Any]:
    """Kill the environment worker as soon as each step has begun; return what the service stored."""
    steps = KILLS + 2
    with service() as running, tg.Client(running.url, running.api_key, patience_seconds=60) as client:
        job = client.train(GAME, steps=steps, **_settings())
        kills = failed = 0
        for event in job.events():
            if isinstance(event.body, StepEvent):
                failed += event.body.failed_episodes
                # The next step's games begin before the previous step is recorded.
                if kills < KILLS and event.body.step < steps:
                    _kill(running, "environment worker")
                    kills += 1
        job.wait()
        stored = list(job.episodes())
    seats = Counter(one.episode_id for one in stored)
    returns: dict[str, float] = {}
    for one in stored:
        returns[one.episode_id] = returns.get(one.episode_id, 0.0) + one.trajectory.episode_return
    return {
        "kills": kills,
        "expected": steps * GROUPS * GROUP_SIZE,
        "games": len(seats),
        "twice": sum(count > len(AGENTS) for count in seats.values()),
        "lost_seats": sum(count < len(AGENTS) for count in seats.values()),
        "failed": failed,
        "unequal": sum(total != 0.0 for total in returns.values()),
    }


def _hashes(part: str | None) -> dict[str, str]:
    """Return the adapters' hashes after a deterministic job in which one process is killed."""
    with service() as running, tg.Client(running.url, running.api_key, patience_seconds=60) as client:
        job = client.train(GAME, steps=STEPS, seed=7, **_settings(deterministic=True))
        killed = part is None
        for event in job.events():
            if not killed and isinstance(event.body, StepEvent) and event.body.step == KILL_AT:
                _kill(running, str(part))
                killed = True
        job.wait()
        last = {view.agent: view for view in job.checkpoints() if view.step == STEPS}
        assert set(last) == set(AGENTS), last
        return {agent: view.sha256 for agent, view in last.items()}


def _kill(running: Service, part: str) -> None:
    """Kill a process as soon as it exists; after the previous kill it may still be starting."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not kill_if_there(running, part):
        if time.monotonic() > deadline:
            raise RuntimeError(f"no process of the service looks like its {part}")
        time.sleep(_PAUSE_SECONDS)
