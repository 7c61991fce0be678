"""The ends of the service's logs, for its operator: bounded, as text, without what looks like a secret."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from tinkergym.errors import NotFoundError
from tinkergym.schema.operation import MOST_LOG_BYTES, LogFile, LogTail

_ENDING = ".log"
# Our own lines name no keys. Environments, libraries and their tracebacks may, and print into the same files.
_SECRETS = (
    re.compile(r"\b(?:tg|sk|hf|ghp|xox[abp])[-_][\w-]{8,}"),
    re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"),
    re.compile(
        r"(?i)([\w-]*(?:api[_-]?key|token|secret|passw(?:or)?d|authorization)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;)}\]]{6,}"
    ),
    re.compile(r"(\w://[^\s/:@]*:)[^\s/@]+(?=@)"),
)
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def list_logs(folder: Path) -> list[LogFile]:
    """Return the logs in the service's folder of them."""
    found = []
    for path in sorted(folder.glob(f"*{_ENDING}")):
        about = path.lstat()
        if stat.S_ISREG(about.st_mode):  # A link would lead elsewhere.
            found.append(LogFile(name=path.stem, bytes=about.st_size, changed_at=about.st_mtime))
    return found[:1000]


def tail(folder: Path, name: str, lines: int) -> LogTail:
    """Return the last lines of a log, at most `MOST_LOG_BYTES`.

    Raises:
        NotFoundError: There is no such log.
    """
    # Only names from the listing: none of them has a path in it.
    if name not in {one.name for one in list_logs(folder)}:
        raise NotFoundError(f"there is no log {name!r}", field="name")
    with (folder / f"{name}{_ENDING}").open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - MOST_LOG_BYTES)
        file.seek(start)
        found = file.read(MOST_LOG_BYTES).decode("utf-8", "replace").split("\n")
    if start:
        found = found[1:]  # Half a line, and perhaps half a secret.
    kept = found[-lines - 1 :]  # The last line ends with a line break.
    return LogTail(
        name=name, text=without_secrets("\n".join(kept)), begins_later=start > 0 or len(kept) < len(found)
    )


def without_secrets(text: str) -> str:
    """Return a text without control characters and without what looks like a key or a token."""
    text = _CONTROLS.sub("", text)
    for pattern in _SECRETS:
        text = pattern.sub(lambda found: f"{found[1] if found.re.groups and found[1] else ''}<secret>", text)
    return text
