"""A pool worker: one base model in one process, with its learner, its engine, its jobs and its endpoint.

Every promise it makes is in the store; when it is killed, the next one goes on from there.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from backend.config import ServiceConfig
from backend.device_lock import DeviceLock, compute_alone, send_helpers_home
from backend.errors import SERVICE_LOG, RankLostError, StartError
from backend.learner.checkpoints import Checkpoint
from backend.learner.data_parallel import DataParallelLearner
from backend.learner.learner import Learner
from backend.learner.rank_process import StartRanks, child_ranks
from backend.rollout.engines.choose import make_engine
from backend.rollout.engines.protocol import Deliver
from backend.rollout.env_worker_files import EnvWorkerFiles
from backend.rollout.models import load_renderer_bundle, resolve_model
from backend.store.store import JobLease, Store
from backend.training.another_attempt import NOT_TAKEN_UP, RANK_LOST, begin_again
from backend.training.boards import Boards, EnvWorkerReport
from backend.training.early_requests import EarlyRequests
from backend.training.endpoint import PoolEndpoint
from backend.training.heartbeat import Heartbeat, Pulse
from backend.training.job_context import JobContext
from backend.training.job_control import JobControl
from backend.training.job_loop import JobLoop
from backend.training.kinds import loop_of
from backend.training.lockstep import LockstepGate
from backend.training.policies import PolicyDirectory, StoredPolicy
from backend.training.pool_learner import AnyLearner, PoolLearner
from backend.training.step_clock import StepClock
from backend.training.stored_weights import stored_weights
from tinkergym.errors import InternalServiceError, InvalidRequestError, NotFoundError, TinkerGymError
from tinkergym.loop.call_register import episodes_in_calls
from tinkergym.wire import (
    ErrorView,
    LeaseReply,
    LeaseRequest,
    PlayedSpec,
    RendererBundle,
    SampleFailure,
    SampleRequest,
    SubmitReply,
    SubmitRequest,
    TrainingSpec,
)

_log = logging.getLogger(__name__)
_CLOSING_SECONDS = 6.0
_LONGEST_POLL_SECONDS = 10.0
"""A worker that waits for episodes asks again after this at the latest."""

SWITCH_SECONDS = 0.001
"""For how long another thread may keep Python's lock while the engine's or the learner's wants it.

A learner's micro-batch gives it away some hundred times, each for some ten microseconds, and waits this long
for a thread that reads requests. The engine does so a few times per forward, and prepares the next in one go.
"""


class PoolWorker:
    """Serves one model: trains the jobs it is given, and samples for whoever asks."""

    def __init__(
        self,
        config: ServiceConfig,
        *,
        pool_id: str,
        model: str,
        socket_path: Path,
        token: str,
        start_ranks: StartRanks = child_ranks,
    ) -> None:
        """Load the model and begin to listen.

        Args:
            config: Of the service.
            pool_id: Its name in the store.
            model: Which it serves.
            socket_path: Where it listens.
            token: What every request must bring.
            start_ranks: What starts the ranks of its learner, if `learner_ranks` asks for any.

        Raises:
            UnknownModelError: There is no such model.
            StartError: The device that the settings ask for is not there.
            InvalidRequestError: The engine or the learner cannot run it.
            MissingExtraError: The engine that the settings name is not installed.
        """
        torch.set_num_threads(config.torch_threads)
        sys.setswitchinterval(SWITCH_SECONDS)
        self._config, self._pool_id, self._model = config, pool_id, model
        self._start_ranks = start_ranks
        self._store = Store.open(config.store_url).service()
        self._model_dir = resolve_model(
            model, config.models, allow_any=config.allow_any_model, most_bytes=config.download_bytes
        )
        device = _device(config.device, ranks=config.learner_ranks)
        device_lock = DeviceLock(cpu_threads=config.torch_threads if device == "cpu" else None)
        self._device, self._device_lock = device, device_lock
        config.log_dir.mkdir(parents=True, exist_ok=True)
        self._engine = make_engine(
            config.engine,
            self._model_dir,
            device=device,
            device_lock=device_lock,
            threads=config.torch_threads,
            vllm=config.vllm,
            log=config.log_dir / "vllm.log",
            dtype=config.dtype,
            cuda_graphs=config.cuda_graphs,
        )
        try:
            self._learner = PoolLearner(self._make_learner)
        except BaseException:
            self._engine.close()
            raise
        send_helpers_home()  # that came when the models were tried out
        self._boards = Boards()
        self._early = EarlyRequests(self._engine)
        self._policies = PolicyDirectory(
            self._engine, model_names={model}, load=self._stored_policy, keep_idle=config.idle_policies
        )
        self._lock = threading.Lock()
        self._pulses: dict[str, Pulse] = {}
        self._gates: dict[str, LockstepGate] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._closing = self._sampled = False
        self._endpoint = PoolEndpoint(self, socket_path, token)
        self._store.register_pool(pool_id, model, str(socket_path), token, time.time())
        self._heartbeat = Heartbeat(
            self._store,
            lambda: dict(self._pulses),
            show_life=self._show_life,
            lease_seconds=config.lease_seconds,
            heartbeat_seconds=config.heartbeat_seconds,
        )
        self._heartbeat.start()
        _log.info("pool %s serves %s with process %d", pool_id, model, os.getpid())

    def start_job(self, job_id: str) -> None:
        """Take a queued job and run it in a thread of its own; nothing happens if somebody else has it."""
        with self._lock:
            if self._closing or job_id in self._threads:
                return
            lease = self._store.acquire(job_id, self._pool_id, self._config.lease_seconds, time.time())
            if lease is None:
                return
            thread = threading.Thread(target=self._run_job, args=(lease,), name=f"job-{job_id}", daemon=True)
            self._threads[job_id] = thread
            self._pulses[job_id] = Pulse(lease, JobControl(self._boards.wake))
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            self._forget_job(job_id)
            self._begin_again(lease, error)

    def env_worker_ended(self, worker_id: str) -> None:
        """Issue the episodes of a dead environment worker again."""
        files = EnvWorkerFiles(self._config.run_dir, worker_id)
        in_calls = episodes_in_calls(files.calls)
        if in_calls:
            _log.warning("environment worker %s died in calls of %s %s", worker_id, in_calls, files.stall())
        self._boards.forget_worker(worker_id, in_calls)
        files.remove()

    def env_worker_report(self) -> EnvWorkerReport:
        """Return which environment workers play for whom, which hang, and for whom there should be some."""
        return self._boards.report(self._config.lease_seconds + _LONGEST_POLL_SECONDS)

    def close(self) -> None:
        """Hand the jobs back and stop, within seconds."""
        with self._lock:
            self._closing = True
            threads = list(self._threads.values())
            for pulse in self._pulses.values():
                pulse.control.stop()
        deadline = time.monotonic() + _CLOSING_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._heartbeat.close()
        self._boards.shut()
        self._endpoint.close()
        self._store.remove_pool(self._pool_id)
        self._engine.close()
        self._learner.close()

    # --- what the endpoint serves ---

    def sample(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Answer each request once: through the engine, or through the gate of a job in lockstep."""
        self._sampled = True
        refused: list[SampleFailure] = []
        ready: list[SampleRequest] = []
        # Only the episodes of a job's own rollout are in lockstep, and those carry their lease.
        in_step = {job_id: set(self._boards.playing(job_id)) for job_id in list(self._gates)}
        for request in requests:
            try:
                self._refuse_part_of_the_distribution_in_training(request)
                resolved = self._policies.resolve(request)
            except TinkerGymError as error:
                view = ErrorView.model_validate(error.to_wire())
                refused.append(SampleFailure(request_id=request.request_id, error=view))
                continue
            gate = self._gates.get(request.policy)
            # The gateway puts the tenant before the session; in lockstep the lease says whose turn it is.
            lease_id = request.session_id.rpartition("/")[2]
            if gate is not None and lease_id in in_step.get(request.policy, ()):
                gate.submit([resolved.model_copy(update={"session_id": lease_id})], deliver)
            else:
                owned = self._with_owner(resolved)
                if not self._early.keep(owned, deliver):
                    ready.append(owned)
        for policy in {request.policy for request in requests}:
            self._boards.contact(policy)
        if refused:
            deliver(refused)
        if ready:
            self._engine.submit(ready, deliver)

    def _with_owner(self, request: SampleRequest) -> SampleRequest:
        """Put the job's tenant before the session, as the gateway does for requests from outside."""
        pulse = None if "/" in request.session_id else self._pulses.get(request.policy)
        if pulse is None:
            return request
        owner = quote(pulse.lease.tenant_id, safe="")
        return request.model_copy(update={"session_id": f"{owner}/{request.session_id}"})

    def _refuse_part_of_the_distribution_in_training(self, request: SampleRequest) -> None:
        if request.structured is None and not request.is_cut:
            return
        if request.session_id.rpartition("/")[2] not in self._boards.playing(request.policy):
            return
        if request.structured is not None:
            field, what = "structured", "structured answers"
        else:
            field = "top_p" if request.top_p < 1 else "top_k"
            what = f"answers drawn with {field}"
        raise InvalidRequestError(
            f"an episode that is trained on cannot have {what}: their logprobs are those "
            "among the tokens that are allowed, and the learner's are not",
            hint=f"leave {field} out; act with a policy and evaluate take it",
            field=field,
        )

    def lease(self, request: LeaseRequest, job_id: str) -> LeaseReply:
        """Hand out episodes; waits for some."""
        return self._boards.lease(request, job_id)

    def vanished(self, worker_id: str, job_id: str) -> None:
        """Issue the episodes of a worker again whose connection broke."""
        self._boards.vanished(worker_id, job_id)

    def submit(self, request: SubmitRequest, job_id: str) -> SubmitReply:
        """Store results; with a job, only its own."""
        reply = self._boards.submit(request, job_id)
        for gate in list(self._gates.values()):
            gate.look()
        return reply

    def renderer(self, model: str) -> RendererBundle:
        """Return what turns messages into the model's token ids."""
        if model != self._model:
            raise NotFoundError(f"this pool serves {self._model!r}, not {model!r}", field="model")
        return self._bundle

    @cached_property
    def _bundle(self) -> RendererBundle:
        return load_renderer_bundle(self._model, self._model_dir)

    # --- inside ---

    def _show_life(self, now: float) -> None:
        self._store.touch_pool(self._pool_id, now)
        if self._sampled:
            self._sampled = False
            # Somebody samples without a job: the pool is still needed.
            self._store.want_pool(self._model, now)

    def _run_job(self, lease: JobLease) -> None:
        # Whatever happens: a job that is left among the pulses would be held, and nobody would run it.
        try:
            compute_alone()
            try:
                loop = self._loop(lease)
            except Exception as error:
                self._begin_again(lease, error)
            else:
                loop.run()
        finally:
            self._forget_job(lease.job_id)

    def _loop(self, lease: JobLease) -> JobLoop[Any]:
        """Put together what the job needs.

        Raises:
            RankLostError: The learner had lost a rank, and no new ranks could be started.
        """
        job_id, spec = lease.job_id, lease.spec
        if isinstance(spec, PlayedSpec) and spec.deterministic:
            self._gates[job_id] = LockstepGate(
                self._engine, lambda: self._boards.playing(job_id), one_by_one=spec.rollout == "script"
            )
        learner = self._learner.current()
        context: JobContext[TrainingSpec] = JobContext(
            lease=lease,
            spec=spec,
            store=self._store,
            learner=learner,
            engine=self._engine,
            boards=self._boards,
            early=self._early,
            policies=self._policies,
            control=self._pulses[job_id].control,
            clock=StepClock(lambda: self._engine.busy_seconds, lambda: learner.busy_seconds),
            checkpoints_dir=self._config.jobs_dir / job_id / "checkpoints",
            open_model=self._open_model,
            data_dir=self._config.uploads_dir,
            lease_seconds=self._config.lease_seconds,
            client_place_seconds=self._config.client_place_seconds,
            dtype=self._config.dtype,
            sleep_while_learning=self._config.sleep_while_learning,
        )
        return loop_of(context)

    def _begin_again(self, lease: JobLease, error: Exception) -> None:
        """Hand back a job whose loop could not begin."""
        _log.error("%s cannot be taken up", lease.job_id, exc_info=error)
        if self._closing:
            self._store.release(lease)
            return
        if not isinstance(error, TinkerGymError):
            error = InternalServiceError(
                f"the worker could not take the job up: {error!r}", hint=f"{SERVICE_LOG} has the traceback"
            )
        begin_again(
            self._store, lease, RANK_LOST if isinstance(error, RankLostError) else NOT_TAKEN_UP, error
        )

    def _forget_job(self, job_id: str) -> None:
        gate = self._gates.pop(job_id, None)
        try:
            if gate is not None:
                gate.close()
        finally:
            with self._lock:
                self._pulses.pop(job_id, None)
                self._threads.pop(job_id, None)

    def _make_learner(self) -> AnyLearner:
        ranks = self._config.learner_ranks
        if ranks == 1:
            return self._learner_of(self._model_dir)
        return DataParallelLearner(
            self._model_dir,
            ranks=ranks,
            device=self._device,
            dtype=getattr(torch, self._config.dtype),
            threads_per_rank=max(1, self._config.torch_threads // ranks),
            divide_from=self._config.learner_divide_from,
            start_ranks=self._start_ranks,
            folder=self._config.run_dir,
        )

    def _open_model(self, model: str) -> Learner:
        directory = resolve_model(
            model,
            self._config.models,
            allow_any=self._config.allow_any_model,
            most_bytes=self._config.download_bytes,
        )
        return self._learner_of(directory)

    def _learner_of(self, directory: Path) -> Learner:
        return Learner(
            directory,
            device=self._device,
            dtype=getattr(torch, self._config.dtype),
            device_lock=self._device_lock,
            cpu_threads=self._config.torch_threads,
        )

    def _stored_policy(self, job_id: str) -> StoredPolicy | None:
        views = self._store.checkpoints(job_id)
        if not views:
            return None
        checkpoint = Checkpoint.open(views[-1].path)
        spec = self._store.job(job_id).spec
        return StoredPolicy(
            version=views[-1].policy_version,
            weights=stored_weights(checkpoint),
            from_base=not spec.initial_policy,
        )


def _device(wanted: str, *, ranks: int) -> str:
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise StartError(
            f"device={wanted!r} is set, but torch sees no GPU on this machine",
            hint="set device=cpu, or install a CUDA build of torch",
            field="device",
        )
    if wanted.startswith("cuda") and (torch.device(wanted).index or 0) >= torch.cuda.device_count():
        raise StartError(
            f"device={wanted!r} is set, but torch sees {torch.cuda.device_count()} GPUs, counted from 0",
            hint="set a lower number, or device=cuda",
            field="device",
        )
    if wanted.startswith("cuda") and ranks > torch.cuda.device_count():
        raise StartError(
            f"learner_ranks={ranks} want a GPU each, and torch sees {torch.cuda.device_count()}",
            hint="lower learner_ranks, or set device=cpu",
            field="learner_ranks",
        )
    return wanted
