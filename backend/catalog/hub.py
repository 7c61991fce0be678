"""Models of the Hugging Face hub: download them, or explain why not and what to do.

Its client's errors for a missing connection, a missing repository and a rejected token look similar, but need
different actions.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors

from backend.catalog.tensor_files import has_all_weights
from tinkergym.errors import UnknownModelError

_FILES = ["*.json", "*.safetensors", "*.jinja"]
_INSTEAD = "use the path of a folder on the service's machine with the downloaded model"


class NotDownloadedError(Exception):
    """A model is not on this machine, and could not be downloaded."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason, advice)
        self.reason, self.advice = reason, advice


def downloaded(hub_id: str, *, most_bytes: int | None) -> Path:
    """Return the folder of a model, downloaded before or now.

    Args:
        hub_id: As `owner/name`.
        most_bytes: The largest download; None for any.

    Raises:
        UnknownModelError: It is larger.
        NotDownloadedError: The hub does not offer it, or cannot be reached.
    """
    if (found := at_hand(hub_id)) is not None:
        return found
    try:
        if most_bytes is not None:
            _refuse_large_download(hub_id, most_bytes)
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=_FILES))
    except UnknownModelError:
        raise
    except Exception as error:  # Includes errors of its HTTP library, which have no common type.
        raise NotDownloadedError(*why_not(hub_id, error)) from error


def at_hand(hub_id: str) -> Path | None:
    """Return the folder of a model that was downloaded before; None if anything of it is missing."""
    try:
        found = Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=_FILES, local_files_only=True))
    except (errors.LocalEntryNotFoundError, errors.HFValidationError):
        return None
    return found if has_all_weights(found) else None


def _refuse_large_download(hub_id: str, most_bytes: int) -> None:
    files = huggingface_hub.HfApi().model_info(hub_id, files_metadata=True).siblings or []
    size = sum(file.size or 0 for file in files if any(fnmatch(file.rfilename, wanted) for wanted in _FILES))
    if size > most_bytes:
        raise UnknownModelError(
            f"{hub_id!r} has {size} bytes, but the service only downloads models of at most {most_bytes}",
            hint="choose a smaller one, or ask the operator to add it to `models` or raise download_bytes",
            field="model",
        )


def why_not(hub_id: str, error: Exception) -> tuple[str, str]:
    """Return what happened and what to do, for an error of the hub's client.

    Args:
        hub_id: The requested model.
        error: The error raised by `snapshot_download`.
    """
    match error:
        case errors.GatedRepoError():
            return (
                f"{hub_id!r} is gated on the Hugging Face hub, and the service's token does not open it",
                f"accept its terms on its page and start the service with HF_TOKEN set, or {_INSTEAD}",
            )
        case errors.RepositoryNotFoundError():
            return (
                f"the Hugging Face hub has no {hub_id!r}, or it is private",
                "check its spelling; for a private one start the service with HF_TOKEN set",
            )
        case errors.HFValidationError():
            return f"{hub_id!r} is not a valid hub id", "a hub id is written owner/name"
        case errors.HfHubHTTPError():
            return (
                f"the Hugging Face hub refused {hub_id!r}: {_first_line(error)}",
                f"try again, or {_INSTEAD}",
            )
        case _ if _is_unreachable(error):
            return (
                "the Hugging Face hub could not be reached from the service's machine",
                f"fix its internet connection (proxy, HF_ENDPOINT, HF_HUB_OFFLINE), or {_INSTEAD}",
            )
        case _:
            return (
                f"{hub_id!r} could not be downloaded from the Hugging Face hub: "
                f"{type(error).__name__}: {_first_line(error)}",
                _INSTEAD,
            )


def _is_unreachable(error: Exception) -> bool:
    # Without a connection, the client falls back to its cache and then misses the model there. Its HTTP
    # library, which has changed before, has its own error types for the rest.
    return isinstance(error, errors.LocalEntryNotFoundError | ConnectionError | TimeoutError) or any(
        word in type(error).__name__ for word in ("Connect", "Timeout", "Proxy", "Network")
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:200]
