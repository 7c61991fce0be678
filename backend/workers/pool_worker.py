"""A pool worker: one base model in one process, with its learner, its engine, its jobs and its endpoint.

Everything acknowledged is in the store; when it is killed, the next one continues from there.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue

from backend.admission.request_bounds import refuse_many_images
from backend.catalog.model_check import refuse_unfit
from backend.catalog.models import load_renderer_bundle, resolve_model
from backend.compute.device_lock import DeviceLock, compute_alone, send_helpers_home
from backend.compute.memory import give_memory_back
from backend.config import ServiceConfig
from backend.engines.protocol import Deliver, SamplingEngine
from backend.episodes.boards import Boards, EnvWorkerReport
from backend.episodes.captured import CapturedTokens
from backend.episodes.env_worker_end import WorkerEnd
from backend.episodes.lockstep import LockstepGate
from backend.errors import SERVICE_LOG, RankLostError
from backend.jobs.another_attempt import NOT_TAKEN_UP, RANK_LOST, begin_again
from backend.jobs.job_context import JobContext
from backend.jobs.job_control import JobControl
from backend.jobs.job_loop import JobLoop
from backend.jobs.kinds import loop_of
from backend.jobs.step_clock import StepClock
from backend.learner.checkpoints import Checkpoint
from backend.learner.data_parallel import DataParallelLearner
from backend.learner.learner import Learner
from backend.learner.rank_process import StartRanks, child_ranks
from backend.policies.bound import Bound, PoolParts
from backend.policies.call_bell import CallBell
from backend.policies.directory import PolicyDirectory, StoredPolicy
from backend.policies.early_requests import EarlyRequests
from backend.policies.pool_learner import AnyLearner, PoolLearner
from backend.policies.stored_weights import stored_weights
from backend.policies.trained_policy import TrainedPolicy
from backend.processes.image_check import ImageCheck
from backend.store.checkpoint_files import checkpoint_path
from backend.store.images import EveryImage, Images
from backend.store.quota_room import QuotaRoom
from backend.store.store import JobLease, Store
from backend.vision.shared import SharedImages
from backend.workers.device_choice import device_of
from backend.workers.endpoint import Player, PoolEndpoint
from backend.workers.engine_choice import make_engine
from backend.workers.env_worker_files import EnvWorkerFiles
from backend.workers.guest_models import GuestModels, ServedModel
from backend.workers.heartbeat import Heartbeat, Pulse
from backend.workers.idle_memory import Rest
from tinkergym.errors import InternalServiceError, InvalidRequestError, NotFoundError, TinkerGymError
from tinkergym.rollout.call_register import episodes_in_calls
from tinkergym.schema.data import ImageKept, ImageNames
from tinkergym.schema.episodes import LeaseReply, LeaseRequest, SubmitReply, SubmitRequest
from tinkergym.schema.events import ErrorView
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.training_spec import TrainingSpec
from tinkergym.schema.sampling import SampleFailure, SampleRequest
from tinkergym.schema.views import RendererBundle

_MOST_BUNDLES = 16
"""The number of cached renderers. Each has a tokenizer of several megabytes; jobs bring their own chat
templates."""

_log = logging.getLogger(__name__)
_CLOSING_SECONDS = 6.0
_LONGEST_POLL_SECONDS = 10.0
"""A worker that waits for episodes asks again after at most this long."""

SWITCH_SECONDS = 0.001
"""For how long another thread may keep Python's lock while the engine's or the learner's thread needs it.

A learner's micro-batch releases it some hundred times, each for about ten microseconds, and waits this long
for a thread that reads requests. The engine does so a few times per forward pass, and prepares the next one
in one go.
"""


class PoolWorker:
    """Serves one model: trains its jobs, and samples for all clients."""

    def __init__(
        self,
        config: ServiceConfig,
        *,
        pool_id: str,
        model: str,
        url: str,
        token: str,
        start_ranks: StartRanks = child_ranks,
    ) -> None:
        """Load the model and start listening.

        Args:
            config: The service's settings.
            pool_id: Its name in the store.
            model: The model it serves.
            url: Its URL; see `backend.worker_url`.
            token: The token that every request must present.
            start_ranks: Starts the ranks of its learner, if `learner_ranks` is above 1.

        Raises:
            UnknownModelError: There is no such model.
            StartError: The configured device does not exist.
            InvalidRequestError: The engine or the learner cannot run it.
            MissingExtraError: The configured engine is not installed.
        """
        torch.set_num_threads(config.torch_threads)
        sys.setswitchinterval(SWITCH_SECONDS)
        self._config, self._pool_id, self._model = config, pool_id, model
        self._start_ranks = start_ranks
        store = Store.open(config.store_url)
        self._store, self._tenant_store = store.service(), store.tenant
        self._model_dir = resolve_model(
            model, config.models, allow_any=config.allow_any_model, most_bytes=config.download_bytes
        )
        self._bundle = lru_cache(maxsize=_MOST_BUNDLES)(self._load_bundle)
        """By the model, and the chat template that replaces its own."""
        # Also where no job asked before: the operator's own models, and weights too large for the gateway.
        refuse_unfit(model, self._model_dir)
        self._device = device_of(config.device, ranks=config.learner_ranks)
        self._images, self._image_room = SharedImages(EveryImage(config.images)), QuotaRoom()
        self._image_check = ImageCheck()
        self._device_lock = DeviceLock(cpu_threads=config.torch_threads if self._device == "cpu" else None)
        self._engine = self._make_engine(self._model_dir)
        try:
            self._learner = PoolLearner(self._make_learner)
        except BaseException:
            self._engine.close()
            raise
        send_helpers_home()  # Created when the models were tested.
        self._boards = Boards(require_images=self._require_images)
        self._captured = CapturedTokens()
        self._early = EarlyRequests(self._engine)
        self._bell = CallBell()
        self._policies = self._directory_of(model, self._engine)
        self._guests = GuestModels(self._load_guest)
        self._lock = threading.Lock()
        self._pulses: dict[str, Pulse] = {}
        self._gates: dict[str, LockstepGate] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._closing = self._sampled = False
        self._rest = Rest(config.pool_rest_seconds, time.monotonic())
        self._endpoint = PoolEndpoint(self, url, token)
        self._store.register_pool(pool_id, model, url, token, time.time())
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
        """Take a queued job and run it in its own thread; does nothing if another worker has it."""
        with self._lock:
            if self._closing or job_id in self._threads:
                return
            lease = self._store.acquire(job_id, self._pool_id, self._config.lease_seconds, time.time())
            if lease is None:
                return
            thread = threading.Thread(target=self._run_job, args=(lease,), name=f"job-{job_id}", daemon=True)
            self._threads[job_id] = thread
            self._pulses[job_id] = Pulse(lease, JobControl(self._wake))
        try:
            thread.start()
        except RuntimeError as error:  # The system cannot start more threads.
            self._forget_job(job_id)
            self._begin_again(lease, error)

    def env_worker_ended(self, worker_id: str, end: WorkerEnd = "died") -> None:
        """Issue the episodes of a dead environment worker again."""
        files = EnvWorkerFiles(self._config.run_dir, worker_id)
        in_calls = episodes_in_calls(files.calls)
        if in_calls:
            _log.warning(
                "environment worker %s ended (%s) in calls of %s %s", worker_id, end, in_calls, files.stall()
            )
        self._boards.forget_worker(worker_id, in_calls, end=end)
        files.remove()

    def env_worker_report(self) -> EnvWorkerReport:
        """Return which environment workers play for which owner, which hang, and which owners need some."""
        return self._boards.report(self._config.lease_seconds + _LONGEST_POLL_SECONDS)

    def close(self) -> None:
        """Return the jobs to the queue and stop, within seconds."""
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
        self._image_check.close()
        self._store.remove_pool(self._pool_id)
        self._guests.close()
        self._engine.close()
        self._learner.close()

    # --- what the endpoint serves ---

    def sample(self, requests: Sequence[SampleRequest], deliver: Deliver, *, together: bool = False) -> None:
        """Answer each request once: through the engine, or through the gate of a lockstep job."""
        self._sampled = True
        own = self._own
        models: dict[str, ServedModel] = {}
        by_model: dict[str, list[SampleRequest]] = {}
        for request in requests:
            served = self._guests.of_policy(request.policy) or own
            models[served.model] = served
            by_model.setdefault(served.model, []).append(request)
        for model, some in by_model.items():
            self._sample(some, deliver, models[model], together=together)

    def _sample(
        self, requests: Sequence[SampleRequest], deliver: Deliver, served: ServedModel, *, together: bool
    ) -> None:
        """Answer requests for policies of one model."""
        deliver = answering = served.directory.answering(self._captured.watching(deliver, requests))
        refused: list[SampleFailure] = []
        ready: list[SampleRequest] = []
        # Only the episodes of a job's own rollout are in lockstep, and their requests have a lease.
        in_step = {job_id: set(self._boards.playing(job_id)) for job_id in list(self._gates)}
        leases = cache(lambda job_id: frozenset(self._boards.playing(job_id)))
        owners = cache(self._boards.jobs_by_lease)
        for request in requests:
            # The gateway puts the tenant before the session; the rest identifies the episode.
            lease_id = request.seat.lease
            # An opponent in a job's game may be of another job, or the model itself.
            job_id = served.directory.trained_by(request.policy) or owners().get(lease_id, request.policy)
            try:
                self._refuse_part_of_the_distribution_in_training(request, job_id)
                if request.images:
                    # Here and not in the gateway, which cannot refuse one request of a batch.
                    most = self._config.limits.prompt_images
                    refuse_many_images(len(request.images), most, field="images")
                    tenant = self._tenant_of(request, job_id)
                    self._require_images(tenant, [image.sha256 for image in request.images])
                resolved = served.directory.resolve_for(
                    answering, request, is_training=partial(_is_among, lease_id, leases, job_id)
                )
            except TinkerGymError as error:
                view = ErrorView.model_validate(error.to_wire())
                refused.append(SampleFailure(request_id=request.request_id, error=view))
                continue
            gate = self._gates.get(job_id)
            if gate is not None and lease_id in in_step.get(job_id, ()):
                gate.submit([resolved.owned_by("")], deliver)
            else:
                owned = self._with_owner(resolved, job_id)
                if not served.early.keep(owned, deliver):
                    ready.append(owned)
        for policy in {request.policy for request in requests}:
            trained_by = served.directory.trained_by(policy) or policy
            self._boards.contact(trained_by)
            self._bell.sampled(trained_by)
        if refused:
            deliver(refused)
        if ready and together:
            served.engine.submit_together(ready, deliver)
        elif ready:
            served.engine.submit(ready, deliver)

    def _tenant_of(self, request: SampleRequest, job_id: str) -> str:
        """Return the requesting tenant: set by the gateway, or found from an environment worker's episode."""
        seat = request.seat
        if seat.owner:
            return seat.owner
        for playing, pulse in list(self._pulses.items()):
            if playing == job_id or seat.lease in self._boards.playing(playing):
                return pulse.lease.tenant_id
        return ""

    def _require_images(self, tenant: str, hashes: Sequence[str]) -> None:
        """Refuse images that the tenant does not have."""
        if hashes:
            Images(self._config.images, tenant).require(hashes)

    def _with_owner(self, request: SampleRequest, job_id: str) -> SampleRequest:
        """Put the job's tenant before the session, as the gateway does for external requests."""
        pulse = None if request.seat.owner else self._pulses.get(job_id)
        return request if pulse is None else request.owned_by(pulse.lease.tenant_id)

    def _is_training(self, request: SampleRequest, job_id: str) -> bool:
        """Whether the request is for an episode that the job trains on."""
        return request.seat.lease in self._boards.playing(job_id)

    def _refuse_part_of_the_distribution_in_training(self, request: SampleRequest, job_id: str) -> None:
        if request.structured is None and not request.is_cut:
            return
        if not self._is_training(request, job_id):
            return
        if request.structured is not None:
            field, what = "structured", "structured answers"
        else:
            field = "top_p" if request.top_p < 1 else "top_k"
            what = f"answers drawn with {field}"
        raise InvalidRequestError(
            f"a training episode cannot have {what}: their logprobs are those of a truncated distribution, "
            f"but the learner's are not",
            hint=f"leave out {field}; policy.act and policy.evaluate accept it",
            field=field,
        )

    def lease(self, request: LeaseRequest, job_id: str) -> LeaseReply:
        """Lease episodes; waits for some."""
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

    def wait_for_call(self, job_id: str, seq: int, seconds: float) -> None:
        """Notify a policy of a new call and wait until it is done, at most `seconds`."""
        self._bell.wait_until_done(job_id, seq, seconds)

    def renderer(self, model: str) -> RendererBundle:
        """Return what turns messages into the model's token ids."""
        template = ""
        if PolicyRef.is_meant(model):
            spec = self._store.job(model).spec
            model, template = spec.model, spec.chat_template
        if model != self._model and not self._guests.has(model):
            raise NotFoundError(f"this pool serves {self._model!r}, not {model!r}", field="model")
        return self._bundle(model, template)

    def _load_bundle(self, model: str, template: str) -> RendererBundle:
        return load_renderer_bundle(model, self._folder_of(model), template)

    def missing_images(self, wanted: ImageNames, player: Player) -> ImageNames:
        """Return which images the player's tenant has not sent."""
        images = Images(self._config.images, self._tenant_of_player(player))
        return ImageNames(images=images.missing(wanted.images))

    def add_image(self, sha256: str, data: bytes, player: Player) -> ImageKept:
        """Store an image for the player's tenant."""
        limits, tenant = self._config.limits, self._tenant_of_player(player)
        Images(self._config.images, tenant, room=self._image_room, check=self._image_check).add(
            sha256,
            data,
            most_bytes=limits.image_bytes,
            most_pixels=limits.image_pixels,
            most_in_all=limits.images_bytes,
            most_images=limits.stored_images,
            unfinished_since=self._tenant_store(tenant).unfinished_since(),
        )
        return ImageKept(sha256=sha256)

    def _tenant_of_player(self, player: Player) -> str:
        pulse = self._pulses.get(player.job_id)
        tenant = self._boards.tenant_of(player.worker_id) if pulse is None else pulse.lease.tenant_id
        if tenant is None:
            raise NotFoundError(f"{player} does not play for a job", hint="lease episodes first")
        return tenant

    # --- inside ---

    def _wake(self) -> None:
        self._boards.wake()
        self._bell.ring()

    def _show_life(self, now: float) -> None:
        self._store.touch_pool(self._pool_id, now)
        if self._sampled:
            self._sampled = False
            # A client samples without a job: the pool is still needed.
            self._store.want_pool(self._model, now)
            self._rest.worked(time.monotonic())
        if self._pulses:
            self._rest.worked(time.monotonic())
        elif self._rest.is_due(time.monotonic()):
            # It may take a second, or wait for a hanging engine, so not in the heartbeat's thread.
            threading.Thread(target=self._give_memory_back, name="rest", daemon=True).start()

    def _give_memory_back(self) -> None:
        try:
            # vLLM would have to restart; `sleep_while_learning` decides about that.
            may_sleep = self._config.engine != "vllm" or self._config.sleep_while_learning
            if may_sleep and not self._engine.sleep():
                self._rest.worked(time.monotonic())  # It is still answering an old request.
                return
            self._learner.rest()
        except TinkerGymError as error:  # A rank is lost; the next job starts new ones.
            _log.warning("the memory of pool %s was not returned: %s", self._pool_id, error)

    def _run_job(self, lease: JobLease) -> None:
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
            self._forget_job(lease.job_id)
            # Each job leaves holes between what others still use. In a pool that is never idle they add up.
            give_memory_back()

    def _loop(self, lease: JobLease) -> JobLoop[Any]:
        """Collect the job's dependencies.

        Raises:
            RankLostError: The learner had lost a rank, and no new ranks could be started.
        """
        job_id, spec, played = lease.job_id, lease.spec, lease.spec.played
        if played and played.deterministic:
            self._gates[job_id] = LockstepGate(
                self._engine,
                lambda: self._boards.playing(job_id),
                owner=lease.tenant_id,
                one_by_one=played.rollout == "script",
            )
        policies = self._policies_of(lease)
        first = next(iter(policies.values()))
        context: JobContext[TrainingSpec] = JobContext(
            lease=lease,
            spec=spec,
            store=self._store,
            policies=policies,
            limits=self._learner.current().limits,
            boards=self._boards,
            bell=self._bell,
            control=self._pulses[job_id].control,
            clock=StepClock(lambda: first.sampling_seconds, lambda: first.learning_seconds),
            files=self._config.job_files.below(job_id),
            all_files=self._config.job_files,
            uploads=self._config.uploads,
            lease_seconds=self._config.lease_seconds,
            client_place_seconds=self._config.client_place_seconds,
            dtype=self._config.dtype,
            sleep_while_learning=self._config.sleep_while_learning,
            captured=self._captured,
            place=self._place(),
            model_fingerprint=self._learner.current().model_fingerprint,
        )
        return loop_of(context)

    def _place(self) -> dict[str, JsonValue]:
        """Return where this pool runs."""
        return {
            "engine": self._config.engine,
            "dtype": self._config.dtype,
            "learner_ranks": self._config.learner_ranks,
            "torch_threads": torch.get_num_threads(),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        }

    def _policies_of(self, lease: JobLease) -> dict[str, TrainedPolicy]:
        """Bind a job's policies to this pool, by agent.

        Raises:
            RankLostError: See `_loop`.
        """
        spec = lease.spec
        guests = self._guests.take(sorted(spec.other_models), lease.job_id)
        files = self._config.job_files.below(lease.job_id)
        bound: dict[str, Bound] = {}
        for agent, policy_id in self._store.policies_of(lease.job_id).items():
            served = guests.get(spec.for_agent(agent).model, self._own)
            bound[agent] = Bound(
                policy_id=policy_id,
                agent=agent,
                lease=lease,
                files=files,
                learner=served.learner.current(),
                pool=PoolParts(
                    store=self._store,
                    job_files=self._config.job_files,
                    engine=served.engine,
                    directory=served.directory,
                    early=served.early,
                    open_model=self._open_model,
                ),
            )
        return {agent: TrainedPolicy(one) for agent, one in bound.items()}

    @property
    def _own(self) -> ServedModel:
        """The pool's own model."""
        return ServedModel(
            model=self._model,
            engine=self._engine,
            learner=self._learner,
            directory=self._policies,
            early=self._early,
        )

    def _load_guest(self, model: str) -> ServedModel:
        """Load another model in addition to the pool's own."""
        directory = self._folder_of(model)
        refuse_unfit(model, directory)
        engine = self._make_engine(directory)
        try:
            learner = PoolLearner(lambda: self._learner_of(directory))
        except BaseException:
            engine.close()
            raise
        send_helpers_home()
        return ServedModel(
            model=model,
            engine=engine,
            learner=learner,
            directory=self._directory_of(model, engine),
            early=EarlyRequests(engine),
        )

    def _directory_of(self, model: str, engine: SamplingEngine) -> PolicyDirectory:
        return PolicyDirectory(
            engine, model_names={model}, find=self._stored_policy, keep_idle=self._config.idle_policies
        )

    def _begin_again(self, lease: JobLease, error: Exception) -> None:
        """Return a job to the queue whose loop could not start."""
        _log.error("%s cannot be started", lease.job_id, exc_info=error)
        if self._closing:
            self._store.release(lease)
            return
        if not isinstance(error, TinkerGymError):
            error = InternalServiceError(
                f"the worker could not start the job: {error!r}", hint=f"{SERVICE_LOG} has the traceback"
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
            self._guests.give_back(job_id)
            with self._lock:
                self._pulses.pop(job_id, None)
                self._threads.pop(job_id, None)

    def _make_engine(self, directory: Path) -> SamplingEngine:
        config = self._config
        config.log_dir.mkdir(parents=True, exist_ok=True)
        return make_engine(
            config.engine,
            directory,
            device=self._device,
            device_lock=self._device_lock,
            threads=config.torch_threads,
            vllm=config.vllm,
            log=config.log_dir / "vllm.log",
            dtype=config.dtype,
            images=self._images,
        )

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
            images=EveryImage(self._config.images),
        )

    def _open_model(self, model: str) -> Learner:
        return self._learner_of(self._folder_of(model))

    def _folder_of(self, model: str) -> Path:
        """Return a model's folder; a model from the hub is downloaded first."""
        if model == self._model:
            return self._model_dir
        return resolve_model(
            model,
            self._config.models,
            allow_any=self._config.allow_any_model,
            most_bytes=self._config.download_bytes,
        )

    def _learner_of(self, directory: Path) -> Learner:
        return Learner(
            directory,
            device=self._device,
            dtype=getattr(torch, self._config.dtype),
            device_lock=self._device_lock,
            cpu_threads=self._config.torch_threads,
            images=self._images,
        )

    def _stored_policy(self, name: str) -> StoredPolicy:
        found = self._store.find_policy(PolicyRef.parse(name))
        steps = {view.policy_version: view.step for view in found.kept}
        files = partial(checkpoint_path, self._config.job_files, found.job_id, found.agent)
        job = self._store.job(found.job_id)
        repeats = job.spec.by_calls and not job.state.final
        return StoredPolicy(
            policy_id=found.policy.policy_id,
            versions=tuple(steps),
            read=lambda version: stored_weights(Checkpoint.open(files(steps[version]))),
            from_base=not job.spec.for_agent(found.agent).initial_policy,
            repeats_until=job.policy_version if repeats else None,
        )


def _is_among(lease_id: str, leases: Callable[[str], frozenset[str]], job_id: str) -> bool:
    return lease_id in leases(job_id)
