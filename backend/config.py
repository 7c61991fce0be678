"""The operator's settings: one schema, read once by `serve` and passed to every process it starts.

From a TOML file and from `--set key=value`. A setting takes effect or is refused.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from backend.errors import ConfigError
from backend.external.urls import normal_origins
from backend.planning.strict_settings import Settings
from backend.settings.gateway_limits import GatewayLimits
from backend.settings.served_models import VLLM_MOST_IMAGES, ServedModels
from backend.settings.service_places import ServicePlaces
from tinkergym.errors import InvalidRequestError
from tinkergym.network.model_urls import origin_list
from tinkergym.schema.jobs.view import Cost
from tinkergym.schema.parsing import parse
from tinkergym.schema.refusals import Refusal
from tinkergym.tools.sandbox.isolation_rule import PythonToolSetting

HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]([A-Za-z0-9_.-]*)$", max_length=253)]
"""Without a scheme or a port."""
EnvironmentVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
CONFIG_VARIABLE = "TINKERGYM_SERVICE_CONFIG"
"""Environment variable that carries the effective settings, as JSON, to the processes of one service."""


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


class DashboardSettings(Settings):
    """The pages under `/dashboard`."""

    frontend: Path | None = None
    """A folder with an `index.html` and a folder `static` to serve instead of the service's own pages. They
    read and act through the HTTP API. The gateway reads it when it starts."""


class Prices(Settings):
    """What the pages show as the cost of jobs. Nothing is charged, and no job is refused because of it."""

    job_hour: float = Field(0.0, ge=0, le=1e9, allow_inf_nan=False)
    """Of an hour in which a job has a slot; several jobs may share a device meanwhile."""

    million_tokens: float = Field(0.0, ge=0, le=1e9, allow_inf_nan=False)
    """Of a million sampled or trained tokens; a token that is sampled and trained on counts twice."""

    currency: str = Field("", max_length=10)
    """Written after each amount."""

    def cost(self, seconds: float, tokens: int) -> Cost | None:
        """Return what a job has cost; None without prices."""
        if not self.job_hour and not self.million_tokens:
            return None
        amount = seconds / 3600 * self.job_hour + tokens / 1e6 * self.million_tokens
        return Cost(amount=amount, currency=self.currency)


class ServiceConfig(ServedModels, ServicePlaces):
    """How a service runs."""

    host: str = Field("127.0.0.1", min_length=1)
    """Address to listen on. Keys travel unencrypted: beyond 127.0.0.1, put a TLS proxy in front."""

    host_names: list[HostName] = []
    """Names by which clients reach the service, besides `host`, `localhost` and IP addresses, such as that of
    a proxy: `["tinkergym.example.org"]`. Requests to other names get 421, so that no web page elsewhere can
    reach the service by giving its own name this machine's address (DNS rebinding)."""

    port: int = Field(8265, ge=0, le=65535)
    """Port to listen on. 0 takes a free one, which is recorded in `local.json`."""

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

    sleep_while_learning: bool = False
    """Free the engine's memory while a job learns, if nothing else samples. Waking takes time after each
    update of an RL or distillation job, and at each publish of other jobs. Has no effect on jobs with
    `max_staleness`."""

    limits: GatewayLimits = GatewayLimits()

    dashboard: DashboardSettings = DashboardSettings()

    prices: Prices = Prices()

    @field_validator("dashboard")
    @classmethod
    def _frontend_is_there(cls, value: DashboardSettings) -> DashboardSettings:
        folder = value.frontend
        if folder is not None and not (folder / "index.html").is_file():
            reason = f"{str(folder)!r} has no index.html"
            raise Refusal("frontend", reason, "name a folder with index.html and static/").in_validator()
        return value

    @field_validator("environment_urls")
    @classmethod
    def _origins(cls, value: list[str]) -> list[str]:
        return normal_origins(value)

    @field_validator("judge_urls", "opponent_urls")
    @classmethod
    def _models_elsewhere(cls, value: list[str]) -> list[str]:
        return origin_list(value)

    @model_validator(mode="after")
    def _one_lost_heartbeat_is_survivable(self) -> Self:
        if 2 * self.heartbeat_seconds > self.lease_seconds:
            hint = "raise it, or a healthy worker loses its job after one late heartbeat"
            reason = "must be at least twice heartbeat_seconds"
            raise Refusal("lease_seconds", reason, hint).in_validator()
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
    def passed_seconds(self) -> float:
        """How long small models pass a waiting large one: as long as idle ones stay, a minute at least."""
        return max(60.0, self.pool_idle_seconds)

    def most_jobs_of_one(self, tenants: Callable[[], int]) -> int | None:
        """Return how many slots of each pool one tenant may have; None is all.

        Args:
            tenants: Returns how many tenants there are; only called if that matters.
        """
        if self.jobs_per_tenant is not None:
            return self.jobs_per_tenant
        return None if tenants() < 2 else max(1, self.jobs_per_pool - 1)

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
