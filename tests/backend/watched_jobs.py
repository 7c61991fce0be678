"""A tenant's jobs as a test sees them in the store, whatever runs them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import pytest

from backend.config import ServiceConfig
from backend.errors import LeaseLostError
from backend.store.store import Store
from tinkergym.algorithms import GRPO
from tinkergym.schema.events import CheckpointEvent, CheckpointView, Event, JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, Sampling
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.spaces import Text

_tenants = itertools.count(1)
PATIENCE_SECONDS = 120.0


class Fickle(gym.Env):
    """Pays `pay` per letter of an answer; raises in `step` for the share of seeds that `failing` names."""

    observation_space = Text(100)
    action_space = Text(100)

    def __init__(self, failing: float = 0.0, pay: float = -1.0) -> None:
        self._failing, self._pay = failing, pay

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "say something", {}

    def step(self, action):
        if self.np_random.random() < self._failing:
            raise RuntimeError("the machine is broken")
        return "", self._pay * len(action), True, False, {"metrics": {"letters": len(action)}}


def job_spec(**settings: object) -> RLSpec:
    defaults = {
        "environment": EnvironmentRef(id="test/Fickle-v0"),
        "steps": 2,
        "algorithm": GRPO(group_size=2, groups_per_step=2),
        # Hot, so that a group never agrees: equal returns would teach nothing.
        "sampling": Sampling(max_turn_tokens=4, temperature=3.0),
        "rollout": "client",
        "checkpoint_every": 100,
        **settings,
    }
    if defaults["rollout"] != "server":
        defaults = {"client_timeout_seconds": 3600.0, **defaults}
    return RLSpec(**defaults)


class WatchedJobs:
    """The jobs of a new tenant."""

    def __init__(self, store: Store, config: ServiceConfig) -> None:
        self.config = config
        self.store, self.service = store, store.service()
        self.tenant_id = f"ada-{next(_tenants)}"
        store.keys.ensure_tenant(self.tenant_id)
        self.tenant = store.tenant(self.tenant_id)
        self._states: dict[str, tuple[int | None, JobState]] = {}
        """Each job's state, and the store's commits when it was read."""

    def start_later(self, **settings: object) -> str:
        return self.tenant.create_job(job_spec(**settings), {}).job_id

    def state(self, job_id: str) -> JobState:
        commits = self.service.commits()
        if commits is None or self._states.get(job_id, (None,))[0] != commits:
            self._states[job_id] = commits, self.service.job(job_id).state
        return self._states[job_id][1]

    def events(self, job_id: str, kind: str) -> list[Event]:
        events = self.tenant.events_after(job_id, 0, 10_000)
        return [event.body for event in events if event.body.type == kind]

    def folder(self, stored: CheckpointView | CheckpointEvent) -> Path:
        """Return a checkpoint's folder."""
        return Path(self.config.job_files.where(stored.key))

    def pass_time(self) -> None:
        """Let time pass while a test waits."""
        threading.Event().wait(0.02)

    def until(self, job_id: str, happened: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not happened():
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain; the job's events: {self.events(job_id, 'state')}")
            self.pass_time()

    def until_state(self, job_id: str, state: JobState) -> None:
        self.until(job_id, lambda: self.state(job_id) is state)

    def weights(self, job_id: str, version: int, agent: str = "") -> str:
        sha256 = self.service.version_sha256(job_id, version, agent)
        assert sha256 is not None
        return sha256


class HeldLearner:
    """Stops before a batch, the first or a later one, until it may go on or is to die."""

    def __init__(self) -> None:
        self.hold_at = 1
        self.batches = 0
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.dies = False

    def wait(self) -> None:
        self.batches += 1
        if self.batches < self.hold_at:
            return
        self.reached.set()
        assert self.go_on.wait(PATIENCE_SECONDS)
        if self.dies:
            raise LeaseLostError("as if it had been killed")
