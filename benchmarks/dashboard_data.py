"""What the benchmark of the dashboard looks at, in a data folder: long runs, a long episode, many episodes.

The rows and files are those that a worker writes; only the gateway runs, which is all that the pages need.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from PIL import Image

from backend.config import ServiceConfig
from backend.store.kept_episodes import KeptEpisodes
from backend.store.key_rows import LOCAL_TENANT
from backend.store.store import JobLease, ServiceStore, Store
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import JobState, StepEvent
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec

LONG_STEPS = 10_000
METRICS = 60
LONG_TOKENS = 32_000
IMAGES = 20
MANY_EPISODES = 100_000
_STEPS_TO_COME = 1000
_EPISODES_PER_STEP = 1000
_OTHER_JOBS = 30
_AT_A_TIME = 500
_NEWEST = 2
"""Steps whose episodes are in the database; those of earlier ones are in files, as in a service."""


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """A gateway of its own process, which has read nothing yet."""

    url: str
    process: psutil.Process

    def memory_mb(self) -> float:
        """Return its resident memory."""
        return float(self.process.memory_info().rss / 1e6)


class DashboardData:
    """A data folder with everything that is looked at."""

    def __init__(self, home: Path) -> None:
        """Write it, which takes some twenty seconds."""
        (home / "logs").mkdir()
        self.config = ServiceConfig(data_dir=home)
        self._store = Store.open(self.config.store_url)
        self._store.keys.ensure_tenant(LOCAL_TENANT)
        self.key = self._store.keys.create(LOCAL_TENANT, "benchmark")
        for number in range(_OTHER_JOBS):
            self._job(f"other {number}", 10)
        self.long_run, self._lease = self._job("long", LONG_STEPS + _STEPS_TO_COME)
        for at in range(1, LONG_STEPS, _AT_A_TIME):
            until = min(at + _AT_A_TIME, LONG_STEPS)
            self._server.append_events(self._lease, [_step(one, LONG_STEPS) for one in range(at, until)])
        self.last_step = LONG_STEPS
        self.last_event = self._record(self._lease, _step(LONG_STEPS, LONG_STEPS))
        self._images = [_noise(number) for number in range(IMAGES)]
        self.long_episode = self._save_long_episode()
        self.many_episodes = self._save_many_episodes()

    @property
    def _server(self) -> ServiceStore:
        return self._store.service()

    def close(self) -> None:
        """Close the database."""
        self._store.close()

    def append_step(self) -> tuple[int, float]:
        """Log the long run's next step; return its number and the time when it was committed."""
        self.last_step += 1
        event = _step(self.last_step, LONG_STEPS + _STEPS_TO_COME)
        self.last_event = self._record(self._lease, event)
        return self.last_step, time.time()

    @contextlib.contextmanager
    def gateway(self) -> Iterator[GatewayProcess]:
        """Start a gateway, yield it when it answers and has the images, and stop it."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.set_inheritable(True)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with (self.config.data_dir / "gateway.log").open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "backend.gateway", str(listener.fileno())],
                    env=os.environ | self.config.environment(),
                    pass_fds=[listener.fileno()],
                    stdout=log,
                    stderr=log,
                )
        try:
            # The socket listens already: the first request waits for the process.
            with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
                client.get("/v1/health").raise_for_status()
                client.headers["Authorization"] = f"Bearer {self.key}"
                for image in self._images:
                    name = hashlib.sha256(image).hexdigest()
                    client.put(f"/v1/images/{name}", content=image).raise_for_status()
            yield GatewayProcess(url, psutil.Process(process.pid))
        finally:
            process.terminate()
            process.wait()

    def _job(self, name: str, steps: int) -> tuple[str, JobLease]:
        environment = EnvironmentRef(id="board/TicTacToeVs-v0")
        spec = RLSpec(environment=environment, rollout="client", steps=steps, name=name)
        job_id = self._store.tenant(LOCAL_TENANT).create_job(spec, {}).job_id
        lease = self._server.acquire(job_id, f"worker of {name}", 1e9, now=time.time())
        assert lease is not None
        self._server.set_state(lease, JobState.RUNNING)
        return job_id, lease

    def _record(self, lease: JobLease, step: StepEvent) -> int:
        """Record a step as a worker does; return the number of its event."""
        return self._server.record_step(lease, step, weights_sha256="00").seq

    def _save_long_episode(self) -> str:
        job_id, lease = self._job("long episode", 10)
        each = LONG_TOKENS // IMAGES
        prompt = each * 3 // 8
        turns = []
        for number, image in enumerate(self._images):
            parts = [
                {"type": "text", "text": "look " * 100},
                {"type": "image", "sha256": hashlib.sha256(image).hexdigest()},
            ]
            turns.append(_turn(number * each + prompt, (number + 1) * each, parts, "answer " * 700))
        mask = ([False] * prompt + [True] * (each - prompt)) * IMAGES
        episode_id = f"{job_id}:1:0"
        self._record(lease, _step(1, 10))
        self._server.save_episodes(lease, 1, [_episode(episode_id, mask, turns)])
        return f"{job_id}/episodes/{episode_id}"

    def _save_many_episodes(self) -> str:
        job_id, lease = self._job("many episodes", _STEPS_TO_COME)
        kept = KeptEpisodes(self.config.job_files.below(job_id))
        steps = MANY_EPISODES // _EPISODES_PER_STEP
        mask = [False] * 6 + [True] * 6
        played = []
        for number in range(_EPISODES_PER_STEP):
            parts = [{"type": "text", "text": f"look {number}"}]
            turn = {**_turn(6, 12, parts, f"answer {number}"), "reward": float(number % 3)}
            played.append(_episode("", mask, [turn], number))
        for step in range(1, steps + 1):
            # Not validated again, which would take most of the time.
            results = [
                one.model_copy(update={"episode_id": f"{job_id}:{step}:{number}"})
                for number, one in enumerate(played)
            ]
            if step > steps - _NEWEST:
                self._server.save_episodes(lease, step, results)
            else:
                packed = [zlib.compress(one.model_dump_json().encode(), 1) for one in results]
                kept.write(step, packed, epoch=lease.epoch)
            self._record(lease, _step(step, _STEPS_TO_COME))
        return job_id


def _step(number: int, steps: int) -> StepEvent:
    return StepEvent(
        step=number,
        steps=steps,
        policy_version=number,
        reward_mean=number / steps,
        loss=0.1,
        tokens_per_second=1.0,
        step_seconds=1.0,
        sampling_seconds=0.5,
        learning_seconds=0.5,
        seconds_left=1.0,
        metrics={f"env/metric_{name}": number * name / 7 for name in range(METRICS)},
    )


def _turn(start: int, end: int, observation: list[dict[str, str]], action: str) -> dict[str, Any]:
    return {
        "segment": 0,
        "start": start,
        "end": end,
        "policy_version": 1,
        "finish_reason": "stop",
        "observation": observation,
        "action": action,
        "reward": 0.0,
        "metrics": {},
    }


def _episode(
    episode_id: str, mask: list[bool], turns: list[dict[str, Any]], number: int = 0
) -> EpisodeResult:
    segment = {
        "token_ids": [5 + (number + at) * 7 % 200 for at in range(len(mask))],
        "loss_mask": mask,
        "sampling_logprobs": [-1.0 if own else None for own in mask],
    }
    seat = {
        "agent": "player_0",
        "segments": [segment],
        "turns": turns,
        "terminated": True,
        "truncated": False,
        "stop_reason": "terminated",
        "seed": number,
    }
    return EpisodeResult.model_validate({"episode_id": episode_id, "lease_id": "l", "trajectories": [seat]})


def _noise(number: int) -> bytes:
    """Return a picture that cannot be compressed, so that reading it costs what a photograph costs."""
    file = io.BytesIO()
    Image.effect_noise((512, 512), 60 + number).convert("RGB").save(file, "PNG")
    return file.getvalue()
