"""PEFT adapters from anywhere as policies: read from a folder or the hub, and sent to the service.

Reads `adapter_config.json` and `adapter_model.safetensors` only; the service checks the weights.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tinkergym.basics.extras import import_extra
from tinkergym.errors import InvalidRequestError, TinkerGymError
from tinkergym.remote.api import Api
from tinkergym.schema.adapter_upload import (
    CONFIG,
    MOST_CONFIG_CHARACTERS,
    PART_BYTES,
    AdapterUpload,
    adapter_settings,
    json_object,
    refused,
)
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.parts import Adapter
from tinkergym.schema.jobs.seats import Train
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.views import EXPORT_FILE

WEIGHTS = "adapter_model.safetensors"
_PICKLES = ("adapter_model.bin", "adapter_model.pt", "pytorch_model.bin", "pytorch_adapter.bin")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def import_adapter(api: Api, source: str | os.PathLike[str], *, model: str = "", name: str = "") -> JobView:
    """Send an adapter, and return the job whose policy it is.

    Raises:
        InvalidRequestError: It is not a LoRA adapter that can be trained on, or one of another model.
    """
    folder = _folder_of(source)
    config = _text(folder / CONFIG)
    origin = _text(folder / EXPORT_FILE) if (folder / EXPORT_FILE).exists() else ""
    settings, export = adapter_settings(config), json_object(origin or "{}", EXPORT_FILE)
    base = export.get("base_sha256")
    model = model or str(export.get("base_model") or settings.get("base_model_name_or_path") or "")
    if not model:
        raise refused(f"{source} does not say what its base model is", "name it: model=...")
    digest, parts = hashlib.sha256(), list[str]()
    for part in _parts(folder / WEIGHTS):
        digest.update(part)
        parts.append(hashlib.sha256(part).hexdigest())
        api.put_adapter_part(parts[-1], part)
    return api.add_adapter(
        AdapterUpload(
            model=model,
            config=config,
            sha256=digest.hexdigest(),
            parts=parts,
            base_sha256=base if isinstance(base, str) and re.fullmatch("[0-9a-f]{64}", base) else "",
            name=(name or f"adapter {Path(source).name}")[:100],
        )
    )


def begin_from(
    api: Api, begins: str | os.PathLike[str], model: str, field: str = "initial_policy"
) -> tuple[str, Adapter | None]:
    """Return the reference to an initial policy, and its adapter if the service knows it.

    Args:
        api: The service's API.
        begins: A reference, or a folder or hub id of an adapter, which is then imported.
        model: The job's model.
        field: The setting, for errors.
    """
    reference = str(begins)
    if not PolicyRef.is_meant(reference):
        try:
            reference = import_adapter(api, begins, model=model).job_id
        except InvalidRequestError as error:
            error.field = field if error.field == "source" else error.field
            raise
    try:
        return reference, api.find_policy(reference).adapter
    except TinkerGymError:  # The job's own check says it with the right field.
        return reference, None


def begin_seats(api: Api, seats: object, model: str, adapter: object) -> Any:
    """Return a job's seats or roles with references to what they start from, and its adapters.

    Args:
        api: The service's API.
        seats: As a user wrote them; what cannot be read is returned unchanged.
        model: The job's model.
        adapter: The job's adapter if it was chosen, which seats without one of their own have.
    """
    if not isinstance(seats, Mapping):
        return seats
    found = dict(seats)
    for agent, seat in seats.items():
        own = dict(seat) if isinstance(seat, Mapping | Train) else {}
        if begins := own.get("initial_policy"):
            field = f"agents.{agent}.initial_policy"
            reference, known = begin_from(api, begins, own.get("model") or model, field)
            its = own.get("adapter") or adapter or known
            found[agent] = {**own, "initial_policy": reference, "adapter": its}
    return found


def is_adapter(source: str) -> bool:
    """Whether a name is a folder here with an adapter."""
    try:
        return (Path(source).expanduser() / CONFIG).is_file()
    except (OSError, RuntimeError, ValueError):  # Not a valid path.
        return False


def _folder_of(source: str | os.PathLike[str]) -> Path:
    """Return the folder of an adapter, downloaded if it is a hub id, with both files."""
    folder = Path(source).expanduser()
    inside = folder
    if not folder.is_dir():
        if _HUB_ID.fullmatch(str(source)) is None:
            raise refused(
                f"{source} is not a folder here",
                "name an adapter's folder or its hub id, owner/name; or a job's policy, job-ID or job-ID@40",
            )
        folder = Path(_downloaded(str(source)))
        inside = folder.parents[1]  # The hub's cache links to files of the same repository.
    if not (folder / CONFIG).exists():
        raise refused(f"{source} has no {CONFIG}", "save the adapter with PEFT's save_pretrained")
    if not (folder / WEIGHTS).exists():
        if any((folder / pickle).exists() for pickle in _PICKLES):
            raise refused(
                f"{source} has its weights as a pickle, which is never loaded",
                "save it with PEFT's save_pretrained, which writes safetensors",
            )
        raise refused(f"{source} has no {WEIGHTS}", "save the adapter with PEFT's save_pretrained")
    for file in (CONFIG, WEIGHTS, EXPORT_FILE):
        path = folder / file
        if not path.exists():
            continue
        if not path.resolve().is_relative_to(inside.resolve()):
            raise refused(f"{path} is a link to a file elsewhere", "put the file itself into the folder")
        if not path.is_file():
            raise refused(f"{path} is not a regular file", "save the adapter again")
    return folder


def _downloaded(hub_id: str) -> str:
    hub = import_extra("huggingface_hub", "adapters from the hub need its client")
    try:
        return str(hub.snapshot_download(hub_id, allow_patterns=[CONFIG, WEIGHTS, EXPORT_FILE]))
    except Exception as error:  # Its own errors, and those of its HTTP library.
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        raise refused(
            f"{hub_id!r} is not a folder here, and could not be downloaded from the hub: {first}",
            "check its spelling, your connection, and for a private one HF_TOKEN",
        ) from error


def _text(path: Path) -> str:
    if path.stat().st_size > MOST_CONFIG_CHARACTERS:
        raise refused(f"{path} is larger than {MOST_CONFIG_CHARACTERS} bytes", "save the adapter again")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise refused(f"{path} cannot be read: {error}", "save the adapter again") from error


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        begin = file.read(PART_BYTES)
        # As text, so that another kind of file is not sent at all.
        if len(begin) < 8 or begin[8:9] != b"{":
            raise refused(
                f"{path.name} is not a safetensors file", "save the adapter with PEFT's save_pretrained"
            )
        yield begin
        while part := file.read(PART_BYTES):
            yield part
