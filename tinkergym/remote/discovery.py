"""Find the service's address and key if the script does not give them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from tinkergym.errors import InvalidRequestError, ServiceUnreachableError


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A service's URL and key."""

    url: str
    api_key: str = field(repr=False)


def home() -> Path:
    """Return the data folder of a service on this machine."""
    return Path(os.environ.get("TINKERGYM_HOME") or Path.home() / ".tinkergym").expanduser()


def find(url: str | None = None, api_key: str | None = None) -> Address:
    """Find the service: from arguments, TINKERGYM_URL and TINKERGYM_API_KEY, or a local one.

    `tinkergym serve` writes its address and a key into `local.json` in its data folder.

    Raises:
        ServiceUnreachableError: No service was found.
        InvalidRequestError: The key is malformed, or the local service's file is damaged.
    """
    url = _service_root(url or os.environ.get("TINKERGYM_URL") or "")
    api_key = _sendable(api_key or os.environ.get("TINKERGYM_API_KEY") or "")
    if url and api_key:
        return Address(url=url, api_key=api_key)
    local = _local(home() / "local.json")
    if url:
        # Never send a key to a service other than the one it was made for.
        same = local is not None and _service_root(local.url) == url
        return Address(url=url, api_key=local.api_key if local and same else "")
    if local is None:
        raise ServiceUnreachableError(
            f"no tinkergym service was found: TINKERGYM_URL is not set, and there is no local service in "
            f"{home()}",
            hint="start one here with `tinkergym serve`, or set TINKERGYM_URL and TINKERGYM_API_KEY",
        )
    return Address(url=local.url, api_key=api_key or local.api_key)


def _service_root(url: str) -> str:
    """Return a URL without a trailing `/v1`, which other clients include."""
    return url.strip().rstrip("/").removesuffix("/v1").rstrip("/")


def _sendable(api_key: str) -> str:
    """Return a key without a trailing line break from a file or a clipboard."""
    api_key = api_key.strip()
    if not (api_key.isascii() and api_key.isprintable()):
        raise InvalidRequestError(
            "the API key contains invalid characters",
            hint="copy it again from where `tinkergym keys create` printed it; see TINKERGYM_API_KEY",
            field="api_key",
        )
    return api_key


def _local(path: Path) -> Address | None:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return Address(url=str(fields["url"]), api_key=str(fields["api_key"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(
            f"{path} cannot be read: {error}",
            hint="start the service again with `tinkergym serve`, which writes it",
            field="url",
        ) from None
