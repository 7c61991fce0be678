"""The operator's settings: one schema, read once by `serve` and passed to every process it starts.

From a TOML file and from `--set key=value`. A setting takes effect or is refused.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from backend.compute.weight_formats import Quantization
from backend.errors import ConfigError
from backend.external.urls import normal_origins
from backend.planning.strict_settings import Settings
from backend.planning.wishes import ModelPlacement, OfferedModel
from backend.store.blobs import Blobs
from backend.store.folder_cache import FolderCache
from backend.store.local_blobs import LocalBlobs
from backend.store.place import default_url
from tinkergym.errors import InvalidRequestError
from tinkergym.images.stored_images import MOST_BYTES, MOST_PIXELS
from tinkergym.network.model_urls import origin_list
from tinkergym.schema.parsing import parse
from tinkergym.schema.refusals import Refusal
from tinkergym.tools.sandbox.isolation_rule import PythonToolSetting

HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]([A-Za-z0-9_.-]*)$", max_length=253)]
"""Without a scheme or a port."""
DType = Literal["float32", "bfloat16"]
EnvironmentVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
CONFIG_VARIABLE = "TINKERGYM_SERVICE_CONFIG"
"""Environment variable that carries the effective settings, as JSON, to the processes of one service."""

PACKAGED_MODELS = {
    name: str(Path(__file__).parent / "models" / name) for name in ("nano", "nano-instruct", "nano-vl")
}

_LONGEST_SOCKET = "ray/session_2026-01-31_23-59-59_000000_4194304/sockets/plasma_store"
"""The longest path of a socket below `run_dir`: Ray's. The last number is the largest process id."""

LONGEST_RUN_DIR = 107 - len("/" + _LONGEST_SOCKET)
"""In bytes: the kernel's `sockaddr_un` takes 107 and a terminating zero."""


class GatewayLimits(Settings):
    """Limits of the gateway, per request and per client."""

    body_bytes: int = Field(8 * 2**20, ge=1024)
    """Largest request body. Larger ones get 413 and are never held in memory. A body may contain one JSON
    value per 8 of these bytes; a request for samples, one per 16."""
    bodies_bytes: int = Field(32 * 2**20, ge=1024)
    """Total size of bodies being received. One key may use half of it. Further requests get 503 with
    `Retry-After`."""
    connections: int = Field(1000, ge=10)
    """Open connections. Further ones take the place of one without a request, longest idle first; if all have
    one, they get 503. One key may have half as many open requests, event streams included; further ones get
    429. A client that does not read its response for 60 s is disconnected."""
    request_seconds: float = Field(10.0, gt=0)
    """Time for a request's header to arrive (at most 10 s), and again for its body, plus a second per 32
    KiB."""
    job_check_seconds: float = Field(15.0, gt=0)
    """Time to create and reset an installed environment when a job is submitted."""
    job_checks_at_once: int = Field(2, ge=1)
    """Job checks at once, each in its own process. If there are several, a tenant has at most half of
    them."""
    evaluations_at_once: int = Field(2, ge=1)
    """Evaluations that the service plays at once, each in its own process, one per tenant."""
    evaluation_seconds: float = Field(3600.0, gt=0)
    """Time for one evaluation."""
    data_bytes: int = Field(4 * 2**30, ge=1024)
    """Datasets that one tenant may keep on the service's disk, for SFT and preference jobs."""
    adapter_bytes: int = Field(2 * 2**30, ge=1024)
    """Largest file of an adapter that a tenant sends, and all parts of such files that wait for the rest."""
    adapters_bytes: int = Field(16 * 2**30, ge=1024)
    """Adapters that one tenant has sent and the service keeps. Deleting their jobs makes room."""
    image_bytes: int = Field(MOST_BYTES, ge=1024, le=MOST_BYTES)
    """Largest image file. At most `body_bytes`. It can be lowered, but not raised: clients and
    environments refuse larger ones themselves."""
    image_pixels: int = Field(MOST_PIXELS, ge=1, le=MOST_PIXELS)
    """Most pixels of an image: height times width. It can be lowered, but not raised."""
    images_bytes: int = Field(4 * 2**30, ge=1024)
    """Images that one tenant may keep on the service's disk. To make room for new ones, those are deleted
    that were last used more than an hour before its oldest unfinished job was created, or an hour ago if it
    has none."""
    stored_images: int = Field(50_000, ge=1)
    """The same limit as a number of images. A small file uses more disk space than its size."""
    calls_bytes: int = Field(256 * 2**20, ge=1024)
    """Calls of own training loops that one tenant may have waiting, compressed. Clients hold back further
    ones."""
    prompt_images: int = Field(64, ge=1)
    """Most images in one prompt. At most 64 with `engine="vllm"`."""
    job_bytes: int = Field(256 * 1024, ge=1024)
    """Largest job description."""
    episodes_per_step: int = Field(16_384, ge=1)
    """Most episodes per train step, including rounds of dynamic sampling. They are all in memory at
    once."""
    samples_in_flight: int = Field(2048, ge=1)
    """Sampling requests that one tenant may have in flight at a model's worker. More get 429 with
    `Retry-After`, and clients wait. A deterministic job that a client plays may have at most this many
    episodes per step."""
    warm_up_seconds: float = Field(60.0, ge=0)
    """How long a request of the OpenAI API waits for its model, which is loaded when it is first used and
    unloaded when it was idle. Then it gets 503 with `Retry-After`."""

    @model_validator(mode="after")
    def _the_largest_body_has_room(self) -> Self:
        if self.bodies_bytes < self.body_bytes:
            reason = f"must be at least body_bytes = {self.body_bytes}, or the largest body never fits"
            raise Refusal("bodies_bytes", reason, "raise it").in_validator()
        if "image_bytes" in self.model_fields_set and self.image_bytes > self.body_bytes:
            reason = f"must be at most body_bytes = {self.body_bytes}, or the largest image does not fit"
            raise Refusal("image_bytes", reason, "raise that as well").in_validator()
        return self


VLLM_LEAST_TEMPERATURE = 0.01
"""vLLM silently raises smaller temperatures to this; then the logprobs would be of another temperature."""

VLLM_MOST_IMAGES = 64
"""Images per prompt, for which vLLM reserves memory when it starts."""


class RaySettings(Settings):
    """The Ray cluster that runs the workers. By default the service starts its own Ray on this machine."""

    address: str = Field("", pattern=r"^(auto|[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5})?$")
    """`HOST:PORT` of a running cluster, or `auto` for the one that a node on this machine belongs to. The
    scheduler must run on one of its nodes. Empty means a Ray of its own."""
    token_file: Path | None = None
    """File with the cluster's token. By default the one that Ray finds itself: `RAY_AUTH_TOKEN`,
    `RAY_AUTH_TOKEN_PATH` or `~/.ray/auth_token`."""
    env_worker_cpus: float = Field(1.0, gt=0)
    """CPUs that each environment worker asks a cluster for. A model's worker asks for `torch_threads` and for
    the memory that the model is expected to take."""


class VllmSettings(Settings):
    """How vLLM runs; only read with `engine="vllm"`."""

    max_adapter_rank: Literal[8, 16, 32, 64, 128, 256, 512] = 32
    """Adapters of a higher rank are refused. Lower ranks are padded to it, which costs time and
    memory."""
    adapters_at_once: int = Field(8, ge=1)
    """Different adapters in one batch. Further ones take turns."""
    cache_bytes: int = Field(1 << 30, ge=1 << 20)
    """Size of the KV cache on a CPU."""
    gpu_memory: float = Field(0.4, gt=0, lt=1)
    """Fraction of a GPU's memory for vLLM's weights and cache. The learner needs the rest."""
    enforce_eager: bool = False
    """On a GPU: disable CUDA graphs and `torch.compile`, which starts sooner and decodes more slowly.
    They are always disabled on a CPU."""
    max_sequences: int = Field(256, ge=1)
    """Most sequences in one batch."""
    start_seconds: float = Field(300.0, gt=0)
    """Time for vLLM to load the model and answer its first canary request."""
    full_weights: Literal["host", "device"] = "host"
    """Where full weights wait for vLLM. `host` is shared memory. `device` is the GPU, by CUDA IPC: faster
    if several such policies take turns, at the cost of a copy of each in GPU memory. Refused without a
    GPU."""
    sleep: Literal["auto", "offload", "end"] = "auto"
    """What sleeping means. `offload` is vLLM's sleep mode: on a GPU it moves the weights to the CPU and
    frees the cache; on a CPU it only empties the cache. `end` stops vLLM and starts it again on the next
    request. `auto` is `offload` on a GPU and `end` on a CPU."""
    canary_seconds: float = Field(20.0, gt=0)
    """After this long without output vLLM is asked for one token."""
    canary_deadline_seconds: float = Field(60.0, gt=0)
    """If that token does not arrive in this time, vLLM is restarted."""


def _home() -> Path:
    return Path(os.environ.get("TINKERGYM_HOME") or "~/.tinkergym")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_REPLACED = {
    "device": "placement.gpus=0 for a CPU, placement.gpus=1 for one GPU; CUDA_VISIBLE_DEVICES says which",
    "learner_ranks": "placement.learner.ranks",
    "learner_divide_from": "placement.learner.divided",
}
"""Settings of the past, and what does their work."""


class DashboardSettings(Settings):
    """The pages under `/dashboard`."""

    frontend: Path | None = None
    """A folder with an `index.html` and a folder `static` to serve instead of the service's own pages. They
    read and act through the HTTP API. The gateway reads it when it starts."""


class ServiceConfig(Settings):
    """How a service runs."""

    data_dir: Path = Field(default_factory=_home, validate_default=True)
    """Database, checkpoints, logs and `local.json`. Default: $TINKERGYM_HOME, else `~/.tinkergym`."""

    host: str = Field("127.0.0.1", min_length=1)
    """Address to listen on. Keys travel unencrypted: beyond 127.0.0.1, put a TLS proxy in front."""

    host_names: list[HostName] = []
    """Names by which clients reach the service, besides `host`, `localhost` and IP addresses, such as that of
    a proxy: `["tinkergym.example.org"]`. Requests to other names get 421, so that no web page elsewhere can
    reach the service by giving its own name this machine's address (DNS rebinding)."""

    port: int = Field(8265, ge=0, le=65535)
    """Port to listen on. 0 takes a free one, which is recorded in `local.json`."""

    operator_key: Path | None = None
    """Ed25519 private key (PEM) that signs certificates. By default one is created in the database.
    `tinkergym status` shows the public key."""

    database_url: str = ""
    """`sqlite:////absolute/path` or `postgresql://user@host/database`. Empty means `tinkergym.sqlite3` in
    `data_dir`."""

    blobs: str = ""
    """Where checkpoints, uploads and images are kept: an absolute folder, or `s3://bucket/prefix`, which
    requires the extra `s3` and takes credentials and endpoint from the environment as other S3 clients do.
    Empty means `data_dir`."""

    blob_cache_bytes: int = Field(50 * 2**30, ge=0)
    """Disk space on each node for checkpoints from an object store, in `data_dir`. Those used longest ago are
    removed for new ones, but none within 10 minutes."""

    models: dict[str, OfferedModel] = Field(default=PACKAGED_MODELS, validate_default=True)
    """Table of models: name = directory or Hugging Face hub id, or a table with this as `path` and a
    `placement` of its own. `nano`, `nano-instruct` and `nano-vl` are always there."""

    placement: ModelPlacement = ModelPlacement()
    """Where all models run, unless `models.NAME.placement` says otherwise."""

    allow_any_model: bool = True
    """Whether the local owner (the key in `local.json`) may name directories and hub ids outside
    `models`. Other keys never may."""

    download_bytes: int = Field(100 * 2**30, ge=0)
    """Largest model that is downloaded from the hub if `models` does not list it."""

    preload: list[str] = ["nano"]
    """Models that are loaded when the service starts."""

    lease_seconds: float = Field(30.0, gt=0)
    """How long a worker may go without a heartbeat before its job or episode is given to another."""

    heartbeat_seconds: float = Field(5.0, gt=0)
    """How often a worker sends a heartbeat. At most half of `lease_seconds`."""

    worker_transport: Literal["unix", "tcp"] = "unix"
    """How gateway and environment workers reach pool workers: by Unix sockets in `data_dir`, or by TCP
    ports on the loopback interface. Each pool has its own token. With `ray.address`, by TCP on its node's
    address."""

    ray: RaySettings = RaySettings()

    private_network: bool = False
    """Whether only the service's own machines can reach the network between them. Workers use it without
    encryption, and refuse to listen beyond the loopback interface otherwise."""

    env_workers: int = Field(2, ge=0)
    """Processes that play installed packs, per model and tenant. Tenants never share one. One set is
    started ahead of the first job. With 0, only clients play."""

    environment_urls: list[str] = []
    """Origins of environment servers that jobs may name: `wss://envs.example.org`, `ws://10.0.0.5:8300`.
    A host name must resolve to public addresses, unless the address is listed too."""

    judge_urls: list[str] = []
    """Origins of judges that environments played by the service may ask: `https://judge.example.org`. See
    `LLMJudge`."""

    opponent_urls: list[str] = []
    """Origins of external models that may play seats of games on the service: `https://models.example.org`.
    See `tg.opponents.External`."""

    python_tool: PythonToolSetting = "namespaces"
    """How the service runs Python that policies write (`PythonTool`). `namespaces` refuses jobs that use it
    where the machine offers none, as on macOS and in most containers. `limits` runs the code there too; such
    code can then read and change whatever the service can. `off` refuses all such jobs."""

    environment_variables: list[EnvironmentVariable] = []
    """Further environment variables that environments played by the service may read, such as a pack's key.
    They see only a short list of harmless ones."""

    episodes_per_worker: int = Field(256, ge=1)
    """Episodes that one environment worker plays at once."""

    environment_stall_seconds: float = Field(10.0, gt=0)
    """How long one environment call may hold Python's lock, as a catastrophic regular expression does.
    After that its process is ended and its episodes are played again, those in a call in separate
    processes."""

    jobs_per_pool: int = Field(4, ge=1)
    """Jobs that train on one loaded model at once. More wait in the queue."""

    jobs_per_tenant: int | None = Field(None, ge=1)
    """Of those, jobs of one tenant. By default one less than `jobs_per_pool` if there are several
    tenants, and unlimited otherwise."""

    client_place_seconds: float = Field(60.0, gt=0)
    """A job that a client plays gives up its place after this long without a client, and queues again when
    one attaches."""

    pool_idle_seconds: float = Field(600.0, gt=0)
    """A model outside `preload` is unloaded after this long without a job or a sample."""

    pool_rest_seconds: float = Field(30.0, gt=0)
    """After this long without a job or a sample, a worker frees the memory that its jobs took, caches
    included. The model and loaded policies stay."""

    pools_memory: float = Field(0.5, gt=0, le=1)
    """Fraction of the machine's memory for the workers of all models. A model that does not fit waits
    until others are idle; those outside `preload` are then unloaded, least recently used first."""

    idle_policies: int = Field(8, ge=1)
    """Policies of ended jobs and past versions that stay loaded per model after they were sampled. More are
    loaded only while more are being sampled."""

    gpu_bytes: int | None = Field(None, ge=1)
    """Memory of each GPU of a cluster's nodes, where nvidia-smi does not tell it."""

    dtype: DType = "float32"
    """Number format of models, in learners and engines. Trained weights, gradients and optimizer state
    stay float32; full-parameter policies keep a second copy for it. Bit-identical results are guaranteed
    in float32."""

    engine: Literal["transformers", "vllm", "scripted"] = "transformers"
    """What samples: `transformers` in the pool worker, `vllm` in its own process, or `scripted`, which draws
    tokens uniformly, for trying out the service."""

    vllm: VllmSettings = VllmSettings()
    """Only read with `engine="vllm"`."""

    sleep_while_learning: bool = False
    """Free the engine's memory while a job learns, if nothing else samples. Waking takes time after each
    update of an RL or distillation job, and at each publish of other jobs. Has no effect on jobs with
    `max_staleness`."""

    torch_threads: int = Field(default_factory=_cores, ge=1)
    """Threads per loaded model. With several models on one machine, divide its cores between them."""

    min_free_bytes: int = Field(200 * 2**20, ge=0)
    """Free disk space in `data_dir` that the service needs to start."""

    limits: GatewayLimits = GatewayLimits()

    dashboard: DashboardSettings = DashboardSettings()

    @field_validator("dashboard")
    @classmethod
    def _frontend_is_there(cls, value: DashboardSettings) -> DashboardSettings:
        folder = value.frontend
        if folder is not None and not (folder / "index.html").is_file():
            reason = f"{str(folder)!r} has no index.html"
            raise Refusal("frontend", reason, "name a folder with index.html and static/").in_validator()
        return value

    @field_validator("data_dir", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        if value == "":  # That would be the folder in which the service happens to be started.
            raise Refusal("", "is empty", "name a folder, or leave out the setting").in_validator()
        return value

    @field_validator("data_dir", "operator_key")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        # Every process of the service must use the same one, whatever its working directory.
        return None if value is None else value.expanduser().absolute()

    @field_validator("blobs")
    @classmethod
    def _place(cls, value: str) -> str:
        value = value.rstrip("/")
        if value and "://" not in value and not Path(value).expanduser().is_absolute():
            reason = f"{value!r} is neither an absolute folder nor a URL"
            raise Refusal("", reason, "write /a/folder or s3://bucket/prefix").in_validator()
        return value if "://" in value or not value else str(Path(value).expanduser())

    @field_validator("environment_urls")
    @classmethod
    def _origins(cls, value: list[str]) -> list[str]:
        return normal_origins(value)

    @field_validator("judge_urls", "opponent_urls")
    @classmethod
    def _models_elsewhere(cls, value: list[str]) -> list[str]:
        return origin_list(value)

    @field_validator("models", mode="before")
    @classmethod
    def _with_packaged(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        for name, own in value.items():
            if not isinstance(own, str | Mapping | OfferedModel):
                reason = f"{own!r} is neither a directory nor a hub id"
                raise Refusal(f"{name}", reason, "write a string, or a table with path").in_validator()
        return {
            name: {"path": own} if isinstance(own, str) else _with_path(name, own)
            for name, own in {**PACKAGED_MODELS, **value}.items()
        }

    @model_validator(mode="before")
    @classmethod
    def _names_of_today(cls, values: object) -> object:
        for name, instead in _REPLACED.items():
            if isinstance(values, Mapping) and name in values:
                raise Refusal(name, "was replaced", f"set {instead}", "replaced").in_validator()
        return values

    @model_validator(mode="after")
    def _placements_agree(self) -> Self:
        for name in self.models:
            try:
                if (self.placement_of(name).tensor_parallel or 1) > 1 and self.engine != "vllm":
                    reason = f"above 1 needs engine=vllm, not engine={self.engine}"
                    raise Refusal("placement.tensor_parallel", reason, "leave it out").in_validator()
            except ValidationError as error:
                reason = f"does not agree with placement: {error.errors()[0]['msg']}"
                raise Refusal(
                    f"models.{name}.placement", reason, "change one of them"
                ).in_validator() from None
        return self

    @model_validator(mode="after")
    def _quantized_models_can_be_run(self) -> Self:
        for name, offered in self.models.items():
            ranks = self.placement_of(name).learner.ranks or 1
            if offered.quantized and (self.engine == "vllm" or ranks > 1):
                what = "with engine=vllm" if self.engine == "vllm" else "by several learner ranks"
                hint = "leave it out, or use engine=transformers and one rank"
                raise Refusal(f"models.{name}.quantized", f"cannot be run {what}", hint).in_validator()
        return self

    @model_validator(mode="after")
    def _one_lost_heartbeat_is_survivable(self) -> Self:
        if 2 * self.heartbeat_seconds > self.lease_seconds:
            hint = "raise it, or a healthy worker loses its job after one late heartbeat"
            reason = "must be at least twice heartbeat_seconds"
            raise Refusal("lease_seconds", reason, hint).in_validator()
        return self

    @model_validator(mode="after")
    def _preloaded_models_are_known(self) -> Self:
        for name in self.preload:
            if name not in self.models and not self.allow_any_model:
                reason = f"contains {name!r}, which is not in models"
                raise Refusal("preload", reason, "add it there").in_validator()
        return self

    @model_validator(mode="after")
    def _weights_that_stay_on_a_gpu_have_one(self) -> Self:
        on_cpu = self.placement.gpus == 0
        if self.vllm.full_weights == "device" and (self.engine != "vllm" or on_cpu):
            reason = f"device requires engine=vllm on a GPU, not engine={self.engine}"
            reason += " with placement.gpus=0" if on_cpu else ""
            raise Refusal("vllm.full_weights", reason, "leave it out").in_validator()
        return self

    @model_validator(mode="after")
    def _vllm_takes_as_many_images(self) -> Self:
        if self.engine == "vllm" and self.limits.prompt_images > VLLM_MOST_IMAGES:
            reason = f"must be at most {VLLM_MOST_IMAGES} with engine=vllm, which refuses prompts with more"
            raise Refusal(
                "limits.prompt_images", reason, "lower it, or set engine=transformers"
            ).in_validator()
        return self

    @property
    def model_paths(self) -> dict[str, str]:
        """Directory or hub id of each model in `models`."""
        return {name: model.path for name, model in self.models.items()}

    def quantization_of(self, model: str) -> Quantization:
        """Return the format of a model's linear layers, if it is not `dtype`."""
        offered = self.models.get(model)
        return "" if offered is None else offered.quantized

    def placement_of(self, model: str) -> ModelPlacement:
        """Return where a model runs; one that `models` does not list, where all do."""
        offered = self.models.get(model)
        if offered is None:
            return self.placement
        placement = offered.placement.filled_from(self.placement)
        if not offered.quantized or placement.learner.ranks is not None:
            return placement
        one = placement.learner.model_copy(update={"ranks": 1})
        return placement.model_copy(update={"learner": one})

    @property
    def store_url(self) -> str:
        """Where the database is."""
        return self.database_url or default_url(self.data_dir)

    @property
    def operator_key_file(self) -> Path:
        """Where the operator's key is, if it is configured or of an earlier version."""
        return self.operator_key or self.data_dir / "operator.key"

    @property
    def job_files(self) -> Blobs:
        """Files of jobs: checkpoints, under the job's id."""
        return self.blobs_in("jobs")

    @property
    def uploads(self) -> Blobs:
        """Uploaded data."""
        return self.blobs_in("uploads")

    @property
    def images(self) -> Blobs:
        """Uploaded images, separated by tenant."""
        return self.blobs_in("images")

    def blobs_in(self, folder: str) -> Blobs:
        """Return the blobs in one of the folders of the service's store."""
        return self.blobs_at(self.blobs or str(self.data_dir)).below(folder)

    def blobs_at(self, place: str) -> Blobs:
        """Return the blobs in a folder, or at the URL of an object store.

        Raises:
            MissingExtraError: What speaks the URL's protocol is not installed.
            ConfigError: Its protocol is not known.
        """
        if "://" not in place:
            return LocalBlobs(Path(place))
        from backend.store.object_blobs import ObjectBlobs

        return ObjectBlobs(place, FolderCache(self.data_dir / "blob-cache", most_bytes=self.blob_cache_bytes))

    @property
    def jobs_dir(self) -> Path:
        """Parent of `<job_id>/checkpoints/`, without `blobs`."""
        return self.data_dir / "jobs"

    @property
    def log_dir(self) -> Path:
        """Output of the service's processes."""
        return self.data_dir / "logs"

    @property
    def local_file(self) -> Path:
        """Where a client on this machine finds the URL and a key; readable by its owner only."""
        return self.data_dir / "local.json"

    @property
    def tokens_dir(self) -> Path:
        """Tokens of environment servers, where earlier versions kept them; read once at a start."""
        return self.data_dir / "env-tokens"

    @property
    def run_dir(self) -> Path:
        """For Unix sockets, Ray's included; private to the user who runs the service.

        In `data_dir`, unless the path would be too long for a socket: then in the system's temporary folder,
        under a name derived from `data_dir`.
        """
        inside = self.data_dir / "run"
        if len(os.fsencode(inside)) <= LONGEST_RUN_DIR:
            return inside
        return Path(tempfile.gettempdir()) / f"tinkergym-{os.getuid()}-{self.digest}"

    @property
    def early_worker_socket(self) -> Path:
        """Where the first pool's process waits until Ray is ready."""
        return self.run_dir / "early.sock"

    @property
    def ray_dir(self) -> Path:
        """For Ray's sockets and logs; created by the scheduler's host.

        Ray makes its folders writable for everyone, so they need a private parent.
        """
        return self.run_dir / "ray"

    @property
    def digest(self) -> str:
        """A short name derived from `data_dir`, for things that cannot be in it."""
        return hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:12]

    def environment(self) -> dict[str, str]:
        """Return the variables that let a child process find these settings with `from_environment`."""
        return {CONFIG_VARIABLE: self.model_dump_json()}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Return the settings of the service that started this process; the defaults if none did."""
        written = environ.get(CONFIG_VARIABLE)
        return cls.model_validate_json(written) if written else cls()


def load_config(file: Path | None = None, settings: Sequence[str] = ()) -> ServiceConfig:
    """Read a TOML file and `key=value` settings, which take precedence; dots lead into sections.

    Raises:
        ConfigError: A file that cannot be read, an unknown key (with close matches), an impossible value.
    """
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not valid TOML: {error}") from error
    for setting in settings:
        _put(values, setting)
    try:
        return parse(ServiceConfig, values)
    except InvalidRequestError as error:
        raise ConfigError(error.message, hint=error.hint, field=error.field) from None


def _with_path(name: str, model: object) -> object:
    """Return a model's table; a packaged one need not say where it is."""
    if isinstance(model, Mapping) and "path" not in model and name in PACKAGED_MODELS:
        return {"path": PACKAGED_MODELS[name], **model}
    return model


def _put(values: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"{setting!r} is not a valid setting", hint="write it as key=value, e.g. port=9000")
    *sections, name = key.split(".")
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{section!r} is not a section, so {key!r} cannot be set", field=key)
        values = inner
    values[name] = _value(text)


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]  # Numbers, true, lists.
    except tomllib.TOMLDecodeError:
        return text
