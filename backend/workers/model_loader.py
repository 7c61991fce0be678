"""Loads base models: engine, learner and policy directory of each."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from backend.catalog.model_check import refuse_unfit
from backend.catalog.models import resolve_model
from backend.compute.device_lock import DeviceLock, release_openmp_threads
from backend.config import ServiceConfig
from backend.engines.protocol import SamplingEngine
from backend.engines.spread.spread_engine import SpreadEngine
from backend.learner.checkpoints import Checkpoint
from backend.learner.learner import Learner
from backend.learner.parallel.data_parallel import DataParallelLearner
from backend.learner.parallel.rank_process import StartRanks, child_ranks
from backend.planning.memory_needs import TEACHER_TOKENS
from backend.planning.pool_place import PoolPlace
from backend.policies.checkpoint_keeping import stored_weights
from backend.policies.early_requests import EarlyRequests
from backend.policies.policy_directory import PolicyDirectory, StoredPolicy
from backend.policies.pool_learner import AnyLearner, PoolLearner
from backend.settings.served_models import VllmSettings
from backend.store.blobs import checkpoint_key
from backend.store.images import EveryImage
from backend.store.store import ServiceStore
from backend.vision.shared_caches import SharedImages
from backend.workers.device_choice import device_of
from backend.workers.engine_choice import make_engine
from backend.workers.guest_models import ServedModel
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.ids import PolicyRef


class ModelLoader:
    """Loads the pool's own model and its guests onto one device.

    All models loaded here share the device's lock and the images in memory. What fails to load leaves nothing
    behind.
    """

    def __init__(
        self,
        config: ServiceConfig,
        store: ServiceStore,
        model: str,
        start_ranks: StartRanks = child_ranks,
        place: PoolPlace | None = None,
    ) -> None:
        """Find the pool's own model and the device.

        Raises:
            UnknownModelError: There is no such model.
            InvalidRequestError: Its weights are unfit.
            ConfigError: The configured device does not exist.
        """
        self._config, self._store, self._start_ranks = config, store, start_ranks
        self.model = model
        """The pool's own."""
        self._own_folder = self._resolved(model)
        # Also where no job asked before: the operator's own models, and weights too large for the gateway.
        refuse_unfit(model, self._own_folder)
        self._placement, self._place = config.placement_of(model), place or PoolPlace()
        self.ranks = len(self._place.ranks) or self._placement.learner.ranks or 1
        """How many processes the learner has."""
        self.engines = len(self._place.engines) or self._placement.engines or 1
        """How many engines the model has; the first is in the pool's process."""
        gpus = self._placement.gpus
        if place is None:
            self.device = device_of(gpus, ranks=max(self.ranks, self._placement.tensor_parallel or 1))
        else:  # The others are for other processes.
            self.device = device_of(len(place.gpus) or gpus, ranks=1)
        self._opened = WeakValueDictionary[str, Learner]()
        self._opening = threading.Lock()
        self._images = SharedImages(EveryImage(config.images, store.image_owners))
        self._device_lock = DeviceLock(cpu_threads=config.torch_threads if self.device == "cpu" else None)

    def folder_of(self, model: str) -> Path:
        """Return a model's folder; a model from the hub is downloaded first."""
        return self._own_folder if model == self.model else self._resolved(model)

    def open_model(self, model: str) -> Learner:
        """Return a model other than the pool's, which jobs share that use it at the same time.

        Raises:
            InvalidRequestError: The pool has GPUs, which have no room for it.
        """
        if self._on_gpus and model not in self._config.teachers_of(self.model):
            raise self._no_room_for(model, f"let the operator list it in models.{self.model}.teachers")
        with self._opening:
            found = self._opened.get(model)
            if found is None:
                tokens = TEACHER_TOKENS if self._on_gpus else None
                found = self._opened[model] = self._learner(self.folder_of(model), model, tokens=tokens)
            return found

    def load_own(self) -> ServedModel:
        """Load the pool's own model.

        Raises:
            InvalidRequestError: The engine or the learner cannot run it.
            MissingExtraError: The configured engine is not installed.
        """
        return self._load(self.model, own=True)

    def load_engine(self) -> SamplingEngine:
        """Load the pool's own model into an engine alone.

        Raises:
            InvalidRequestError: The engine cannot run it.
            MissingExtraError: The configured engine is not installed.
        """
        engine = self._engine(self._own_folder, self.model)
        release_openmp_threads()
        return engine

    def load_guest(self, model: str) -> ServedModel:
        """Load another model in addition to the pool's own.

        Raises:
            InvalidRequestError: Its weights are unfit, or the pool has GPUs.
        """
        if self._on_gpus:
            raise self._no_room_for(model, "train that seat in a separate job against an opponent")
        refuse_unfit(model, self.folder_of(model))
        return self._load(model, own=False)

    @property
    def _on_gpus(self) -> bool:
        return bool(self._place.gpus) or self.device != "cpu"

    def _no_room_for(self, model: str, hint: str) -> InvalidRequestError:
        # Jobs are refused for this when they are submitted; the operator may have added GPUs since.
        return InvalidRequestError(
            f"the GPUs of this worker are planned for {self.model!r} alone, without {model!r}",
            hint=hint,
            code="several_models",
        )

    def _load(self, model: str, *, own: bool) -> ServedModel:
        folder = self.folder_of(model)
        engine = self._engine(folder, model)
        spread: SpreadEngine | None = None
        if own and self.engines > 1:
            silent = self._config.lease_seconds
            engine = spread = SpreadEngine(engine, folder=self._config.run_dir, silent_after=silent)
        try:
            learner = PoolLearner(self._own_learner if own else partial(self._learner, folder, model))
        except BaseException:
            engine.close()
            raise
        release_openmp_threads()  # Created when the models were tested.
        return ServedModel(
            model=model,
            engine=engine,
            learner=learner,
            directory=PolicyDirectory(
                engine, model_names={model}, find=self._stored_policy, keep_idle=self._config.idle_policies
            ),
            early=EarlyRequests(engine),
            spread=spread,
        )

    def _resolved(self, model: str) -> Path:
        config = self._config
        return resolve_model(
            model, config.model_paths, allow_any=config.allow_any_model, most_bytes=config.download_bytes
        )

    def _engine(self, folder: Path, model: str) -> SamplingEngine:
        config = self._config
        config.log_dir.mkdir(parents=True, exist_ok=True)
        return make_engine(
            config.engine,
            folder,
            devices=self._engine_devices,
            device_lock=self._device_lock,
            threads=config.torch_threads,
            vllm=self._vllm(),
            log=config.log_dir / "vllm.log",
            dtype=config.dtype,
            images=self._images,
            cache_bytes=self._cache_bytes,
            merged_adapters=self._place.engines[0].merged_adapters if self._place.engines else None,
            quantized=config.quantization_of(model),
        )

    @property
    def _engine_devices(self) -> tuple[str, ...]:
        if self.device == "cuda" and self._place.engines:
            return self._place.engine_devices
        ranks = self._placement.tensor_parallel or 1
        if self.device == "cuda" and ranks > 1:
            return tuple(f"cuda:{number}" for number in range(ranks))
        return (self.device,) * ranks

    @property
    def _cache_bytes(self) -> int | None:
        """The bytes planned for the cache of the pool's own engine; None on a CPU."""
        return self._place.engines[0].work_bytes or None if self._place.engines else None

    def _vllm(self) -> VllmSettings:
        """Return vLLM's settings with the planned share of the GPU's memory."""
        share = self._place.engines[0].gpu_share if self._place.engines else 0.0
        return self._config.vllm.model_copy(update={"gpu_memory": min(share, 0.99)} if share else {})

    @property
    def _room(self) -> int | None:
        """The bytes planned for activations; None on a CPU."""
        return self._place.ranks[0].work_bytes or None if self._place.ranks else None

    def _own_learner(self) -> AnyLearner:
        if self.ranks == 1:
            return self._learner(self._own_folder, self.model)
        return DataParallelLearner(
            self._own_folder,
            ranks=self.ranks,
            device=self.device,
            dtype=getattr(torch, self._config.dtype),
            threads_per_rank=max(1, self._config.torch_threads // self.ranks),
            divide_from=self._placement.learner.divide_from,
            room=self._room,
            start_ranks=self._start_ranks,
            folder=self._config.run_dir,
            images=EveryImage(self._config.images),
        )

    def _learner(self, folder: Path, model: str, *, tokens: int | None = None) -> Learner:
        return Learner(
            folder,
            device=self.device,
            dtype=getattr(torch, self._config.dtype),
            device_lock=self._device_lock,
            cpu_threads=self._config.torch_threads,
            micro_batch_tokens=tokens,
            room=self._room,
            images=self._images,
            quantized=self._config.quantization_of(model),
        )

    def _stored_policy(self, name: str) -> StoredPolicy:
        found = self._store.find_policy(PolicyRef.parse(name))
        kept = {view.policy_version: view for view in found.kept}
        job_files = self._config.job_files
        job = self._store.job(found.job_id)
        repeats = job.spec.by_calls and not job.state.final
        return StoredPolicy(
            policy_id=found.policy.policy_id,
            versions=tuple(kept),
            read=lambda version: stored_weights(
                Checkpoint.open(job_files.local(checkpoint_key(found.job_id, found.agent, kept[version])))
            ),
            from_base=not job.spec.for_agent(found.agent).initial_policy,
            repeats_until=job.policy_version if repeats else None,
        )
