"""Explain errors of the Hugging Face hub, and what to do about them.

Its client's errors for a missing connection, a missing repository and a rejected token look similar, but need
different actions.
"""

from __future__ import annotations

_INSTEAD = "use the path of a folder on the service's machine with the downloaded model"


def why_not(hub_id: str, error: Exception) -> tuple[str, str]:
    """Return what happened and what to do, for an error of the hub's client.

    Args:
        hub_id: The requested model.
        error: The error raised by `snapshot_download`.
    """
    # Imported here: a service with local models does not need the hub client.
    from huggingface_hub import errors

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
    from huggingface_hub.errors import LocalEntryNotFoundError

    # Without a connection, the client falls back to its cache and then misses the model there. Its HTTP
    # library, which has changed before, has its own error types for the rest.
    return isinstance(error, LocalEntryNotFoundError | ConnectionError | TimeoutError) or any(
        word in type(error).__name__ for word in ("Connect", "Timeout", "Proxy", "Network")
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:200]
