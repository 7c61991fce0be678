"""The jobs that run in a pool."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from pydantic import JsonValue

from backend.compute.device_lock import compute_alone
from backend.episodes.lockstep import LockstepGate
from backend.errors import SERVICE_LOG, RankLostError
from backend.jobs.job_context import JobContext
from backend.jobs.job_control import NOT_TAKEN_UP, RANK_LOST, JobControl, begin_again
from backend.jobs.job_loop import JobLoop
from backend.jobs.kinds import loop_of
from backend.jobs.step_clock import StepClock
from backend.policies.policy_binding import PolicyBinding, PoolParts
from backend.policies.policy_sampler import PolicySampler
from backend.policies.pool_policy import PoolPolicy
from backend.policies.trained_policy import TrainedPolicy
from backend.processes.exhaustion import end_if_exhausted, out_of_memory_code
from backend.processes.memory import give_memory_back
from backend.store.store import JobLease
from backend.workers.heartbeat import Pulse
from backend.workers.shared_parts import SharedParts
from tinkergym.errors import InternalServiceError, TinkerGymError
from tinkergym.schema.jobs.training_spec import TrainingSpec

_log = logging.getLogger(__name__)


class PoolJobs:
    """Runs each job in its own thread.

    A job has a thread and a pulse from when its lease is taken until its thread ends, whatever ends it:
    meanwhile its lease is renewed, and it is not taken again. One that cannot begin returns to the queue.
    """

    def __init__(self, parts: SharedParts, pool_id: str) -> None:
        self._parts, self._pool_id = parts, pool_id
        self._lock = threading.Lock()
        self._closing = False
        self._gates: dict[str, LockstepGate] = {}
        self.pulses: dict[str, Pulse] = {}
        self.threads: dict[str, threading.Thread] = {}

    @property
    def gates(self) -> Mapping[str, LockstepGate]:
        """The gates of the jobs that sample in lockstep, at this moment."""
        return dict(self._gates)

    def start(self, job_id: str) -> None:
        """Take a queued job and run it in its own thread; does nothing if another worker has it."""
        store, config = self._parts.store, self._parts.config
        with self._lock:
            if self._closing or job_id in self.threads:
                return
            lease = store.acquire(job_id, self._pool_id, config.lease_seconds, time.time())
            if lease is None:
                return
            thread = threading.Thread(target=self._run, args=(lease,), name=f"job-{job_id}", daemon=True)
            self.threads[job_id] = thread
            # Before the thread starts: from here on the heartbeat renews the lease.
            self.pulses[job_id] = Pulse(lease, JobControl(self._parts.wake))
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # The system cannot start more threads.
            self._forget(job_id)
            self._begin_again(lease, error)

    def close(self, seconds: float) -> None:
        """Return the jobs to the queue, within `seconds`."""
        with self._lock:
            self._closing = True
            threads = list(self.threads.values())
            for pulse in self.pulses.values():
                pulse.control.stop()
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, lease: JobLease) -> None:
        # In any case: a job left among the pulses would keep its lease without running.
        try:
            compute_alone()
            try:
                loop = self._loop(lease)
            except Exception as error:
                self._begin_again(lease, error)
            else:
                loop.run()
        finally:
            self._forget(lease.job_id)
            # Each job leaves holes between what others still use. In a pool that is never idle they add up.
            give_memory_back()

    def _loop(self, lease: JobLease) -> JobLoop[Any]:
        """Collect the job's dependencies.

        Raises:
            RankLostError: The learner had lost a rank, and no new ranks could be started.
        """
        parts, config = self._parts, self._parts.config
        job_id, spec, played = lease.job_id, lease.spec, lease.spec.played
        if played and played.deterministic:
            self._gates[job_id] = LockstepGate(
                parts.own.engine,
                partial(parts.boards.playing, job_id),
                owner=lease.tenant_id,
                one_by_one=played.rollout == "script",
            )
        policies = self._policies_of(lease)
        own = parts.own
        first = next(iter(policies.values()), None)
        learner = parts.own.learner.current()
        context: JobContext[TrainingSpec] = JobContext(
            lease=lease,
            spec=spec,
            store=parts.store,
            policies=policies,
            sampler=PolicySampler(own.engine, own.directory, tenant_id=lease.tenant_id),
            limits=learner.limits,
            boards=parts.boards,
            bell=parts.bell,
            control=self.pulses[job_id].control,
            clock=StepClock(
                lambda: own.engine.busy_seconds, lambda: 0.0 if first is None else first.learning_seconds
            ),
            files=config.job_files.below(job_id),
            all_files=config.job_files,
            uploads=config.uploads,
            lease_seconds=config.lease_seconds,
            client_place_seconds=config.client_place_seconds,
            dtype=config.dtype,
            sleep_while_learning=config.sleep_while_learning,
            captured=parts.captured,
            place=self._place(),
            model_fingerprint=learner.model_fingerprint,
        )
        return loop_of(context)

    def _place(self) -> dict[str, JsonValue]:
        """Return where this pool runs."""
        config = self._parts.config
        return {
            "engine": config.engine,
            "dtype": config.dtype,
            "learner_ranks": self._parts.loader.ranks,
            "torch_threads": torch.get_num_threads(),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        }

    def _policies_of(self, lease: JobLease) -> dict[str, TrainedPolicy]:
        """Bind a job's policies to this pool, by agent.

        Raises:
            RankLostError: See `_loop`.
        """
        parts, spec = self._parts, lease.spec
        guests = parts.guests.take(sorted(spec.other_models), lease.job_id)
        files = parts.config.job_files.below(lease.job_id)
        bound: dict[str, PolicyBinding] = {}
        for agent, policy_id in parts.store.policies_of(lease.job_id).items():
            served = guests.get(spec.for_agent(agent).model, parts.own)
            bound[agent] = PolicyBinding(
                policy_id=policy_id,
                agent=agent,
                lease=lease,
                files=files,
                learner=served.learner.current(),
                pool=PoolParts(
                    store=parts.store,
                    job_files=parts.config.job_files,
                    engine=served.engine,
                    directory=served.directory,
                    early=served.early,
                    open_model=parts.loader.open_model,
                ),
            )
        return {agent: PoolPolicy(one) for agent, one in bound.items()}

    def _begin_again(self, lease: JobLease, error: Exception) -> None:
        """Return a job to the queue whose loop could not start."""
        _log.error("%s cannot be started", lease.job_id, exc_info=error)
        store = self._parts.store
        if self._closing:
            store.release(lease)
            return
        failure = error
        if not isinstance(failure, TinkerGymError):
            failure = InternalServiceError(
                f"the worker could not start the job: {error!r}",
                hint=f"{SERVICE_LOG} has the traceback",
                code=out_of_memory_code(error),
            )
        why = RANK_LOST if isinstance(error, RankLostError) else NOT_TAKEN_UP
        try:
            begin_again(store, lease, why, failure)
        finally:
            end_if_exhausted(error)

    def _forget(self, job_id: str) -> None:
        gate = self._gates.pop(job_id, None)
        try:
            if gate is not None:
                gate.close()
        finally:
            self._parts.guests.give_back(job_id)
            with self._lock:
                self.pulses.pop(job_id, None)
                self.threads.pop(job_id, None)
