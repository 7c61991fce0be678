"""The operator's models, read from their files without loading weights."""

from __future__ import annotations

import threading
from contextlib import suppress
from copy import copy
from pathlib import Path

from backend.catalog.adapter_files import SentAdapter, WrittenAdapter
from backend.catalog.limited_reads import Reads
from backend.catalog.models import ModelFacts, load_renderer_bundle, read_model_facts, resolve_model
from backend.config import ServiceConfig
from backend.store.store import TenantStore
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.errors import TemplateError, TinkerGymError, UnknownModelError
from tinkergym.schema.views import ModelView, RendererBundle

_REMEMBERED = 32
"""The number of cached renderers, some hundred kilobytes each; without a limit, jobs could add ever new
ones."""

_LONGEST_NAME = 500
"""The longest model name, in characters."""


def require_offered(config: ServiceConfig, tenant: TenantStore, model: str, field: str = "model") -> None:
    """Refuse a model that this tenant may not name, without accessing the disk or the hub.

    Raises:
        UnknownModelError: It is not in the operator's list, and only the local owner may use others.
    """
    if not may_name(config, tenant, model):
        raise UnknownModelError(
            f"the service does not offer the model {model!r}",
            hint=f"choose one of {', '.join(sorted(config.models))}, or ask the operator to add it to "
            f"`models`",
            field=field,
        )


def may_name(config: ServiceConfig, tenant: TenantStore, model: str) -> bool:
    """Return whether a tenant may name a model: a listed one, or any if it is the local owner."""
    return model in config.models or (config.allow_any_model and tenant.is_local_owner)


_Stamps = tuple[tuple[str, int, int], ...]
"""A model's files: their names, sizes, and modification times. Equal stamps mean unchanged files."""


def _stamps_of(directory: Path) -> _Stamps:
    found = []
    for file in sorted(directory.iterdir()):
        with suppress(OSError):  # A broken link.
            stat = file.stat()
            found.append((file.name, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


class FileCatalog:
    """Implements `ModelCatalog` over model directories.

    `reads` does what a user can make expensive: templates of jobs, and files of models that the operator does
    not list.
    """

    def __init__(self, config: ServiceConfig, reads: Reads | None = None) -> None:
        self._config = config
        self._reads = reads or Reads()
        self._lock = threading.Lock()
        # By name and template, with the files' state, because an operator may replace a model in place.
        # A refusal is kept, too: a template that does too much is not tried again.
        self._bundles: BoundedDict[tuple[str, str], tuple[_Stamps, RendererBundle | TemplateError]] = (
            BoundedDict(_REMEMBERED)
        )
        # One model at a time is checked: it may take a second of a core, and reads a GiB from disk.
        self._checking = threading.Lock()
        self._fit: BoundedDict[str, _Stamps] = BoundedDict(_REMEMBERED)

    def listed(self) -> list[ModelView]:
        """Return the named models; the description of an unreadable one has the reason."""
        return [self._view(name) for name in sorted(self._config.models)]

    def known_as(self, model: str) -> str:
        """Return a folder's absolute path without links; other names stay unchanged."""
        # If only listed names are allowed, the response must not reveal where a link leads.
        if model in self._config.models or not self._config.allow_any_model:
            return model
        try:
            directory = Path(model).expanduser()
            path = str(directory.resolve()) if directory.is_dir() else model
        except (OSError, RuntimeError, ValueError):  # Not a valid path.
            return model
        return path if len(path) <= _LONGEST_NAME else model

    def renderer(self, model: str, chat_template: str = "") -> RendererBundle:
        """Return what turns messages into the model's token ids, by its own chat template or another.

        Raises:
            UnknownModelError: The service does not offer the model, or it cannot be read.
            InvalidRequestError: The model cannot be trained, or its weights are not finite.
            TemplateError: The template does not compile, or does too much work.
            ServiceUnavailableError: The machine is too busy to read it.
        """
        # First check whether its architecture can be trained, then whether its weights are complete.
        directory = self._directory(model, with_weights=False)
        stamps = _stamps_of(directory)
        self._require_fit(model, directory, stamps)
        name = (model, chat_template)
        with self._lock:
            known = self._bundles.get(name)
        if known is None or known[0] != stamps:
            # Without the lock: this may take seconds.
            known = stamps, self._read(model, directory, chat_template)
        with self._lock:
            self._bundles[name] = known
        if isinstance(known[1], TemplateError):
            raise copy(known[1])  # Callers name the field.
        return known[1]

    def _read(self, model: str, directory: Path, chat_template: str) -> RendererBundle | TemplateError:
        try:
            if model not in self._config.models:
                return self._reads.renderer(model, directory, chat_template)
            if chat_template:
                return load_renderer_bundle(model, directory, chat_template, probe=self._reads.probe)
            return load_renderer_bundle(model, directory)
        except TemplateError as error:
            return error

    def _require_fit(self, model: str, directory: Path, stamps: _Stamps) -> None:
        """Check a model's files, unless they are unchanged since a successful check."""
        if self._is_fit(directory, stamps):
            return
        with self._checking:
            if self._is_fit(directory, stamps):  # Checked while this thread waited.
                return
            reads = Reads() if model in self._config.models else self._reads
            reads.refuse_unfit(model, directory)
            with self._lock:
                self._fit[str(directory)] = stamps

    def _is_fit(self, directory: Path, stamps: _Stamps) -> bool:
        with self._lock:
            return self._fit.get(str(directory)) == stamps

    def facts(self, model: str) -> ModelFacts:
        """Return what the model's files describe.

        Raises:
            UnknownModelError: The service does not offer the model, or it cannot be read.
        """
        directory = self._directory(model)
        return read_model_facts(directory) if model in self._config.models else self._reads.facts(directory)

    def adapter(self, model: str, sent: SentAdapter, out: Path) -> WrittenAdapter:
        """Check an adapter of a model, and write it as a checkpoint into an existing folder.

        Raises:
            UnknownModelError: The service does not offer the model, or it cannot be read.
            InvalidRequestError: The adapter cannot be trained on, or belongs to another model.
        """
        return self._reads.adapter(self._directory(model), sent, out)

    def _directory(self, model: str, *, with_weights: bool = True) -> Path:
        if model not in self._config.models and self._holds(model):
            raise UnknownModelError(
                f"unknown model {model!r}: the service's own folder has no models for jobs",
                hint="download the checkpoint and use that folder",
                field="model",
            )
        return resolve_model(
            model,
            self._config.model_paths,
            allow_any=self._config.allow_any_model,
            most_bytes=self._config.download_bytes,
            with_weights=with_weights,
        )

    def _holds(self, model: str) -> bool:
        """Whether a path leads into the data folder, which holds the checkpoints of all tenants."""
        try:
            return Path(model).expanduser().resolve().is_relative_to(self._config.data_dir.resolve())
        except (OSError, RuntimeError, ValueError):  # Not a valid path.
            return False

    def _view(self, name: str) -> ModelView:
        try:
            facts = read_model_facts(resolve_model(name, {name: self._config.model_paths[name]}))
        except TinkerGymError as error:
            return ModelView(name=name, context_length=0, description=f"cannot be used: {error}")
        return ModelView(
            name=name,
            parameters=facts.parameters,
            context_length=facts.context_length,
            description=facts.architecture,
        )
