"""The ends of the service's logs, for its operator: bounded, as text, without common forms of secrets."""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tinkergym.errors import NotFoundError
from tinkergym.schema.operation import MOST_LOG_BYTES, LogFile, LogTail

_ENDING = ".log"
_REPLACED = "<secret>"
_MOST_OF_LINE = 4000
"""Characters that are shown of a line."""
_SHORTEST = 6
"""Characters of a secret; shorter ones would blot out ordinary words."""
# Not the counts of tokens, and no tokenizers.
_KEYWORD = (
    r"(?:api[_-]?key|access[_-]?key|private[_-]?key|token(?!s|iz)|secret|passw(?:or)?d|passphrase"
    r"|authorization|credential|signature|session|cookie)"
)
_NAMED = re.compile(f"(?i){_KEYWORD}")
# Our own lines name no keys. Environments, libraries and their tracebacks may, and print into the same files.
# No pattern may search far from where it begins: a search keeps Python's lock, and with it the gateway.
_PEM = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
    r"(?:(?:[^-]|-(?!----))*-----END [A-Z ]{0,40}PRIVATE KEY-----|(?:\s+[\w+/=]{20,})*)"
    r"|\A[\w+/=\s]*-----END [A-Z ]{0,40}PRIVATE KEY-----"
)
_SECRETS = (
    re.compile(r"\b(?:tg|sk|hf|gh[opsur]|github_pat|glpat|xox[abp])[-_][\w-]{8,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"),
    re.compile(r"\beyJ[\w-]{10,}(?:\.[\w-]+){0,2}"),
    re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"),
    re.compile(r"(?i)(\bcookie:\s{0,10}).+"),
    re.compile(
        rf"(?i)({_KEYWORD}[\w-]{{0,40}}\\?[\"']?\s{{0,10}}[=:]\s{{0,10}}\\?[\"']?)"
        r"(?:(?<=\")[^\"]{6,}(?=\")|(?<=')[^']{6,}(?=')|[^\s\"',;)}\]]{6,})"
    ),
    re.compile(r"(\w://[^\s/:@]*:)[^\s@]{1,200}(?=@)"),
)
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def list_logs(folder: Path) -> list[LogFile]:
    """Return the logs in the service's folder of them."""
    found = []
    for path in sorted(folder.glob(f"*{_ENDING}")):
        with suppress(FileNotFoundError):  # It has been deleted meanwhile.
            about = path.lstat()
            if stat.S_ISREG(about.st_mode):  # A link would lead elsewhere.
                found.append(LogFile(name=path.stem, bytes=about.st_size, changed_at=about.st_mtime))
    return found[:1000]


def tail(folder: Path, name: str, lines: int, known: Collection[str] = ()) -> LogTail:
    """Return the last lines of a log, at most `MOST_LOG_BYTES`.

    Args:
        folder: Where the logs are.
        name: One from the listing.
        lines: How many.
        known: Secrets to leave out wherever they stand.

    Raises:
        NotFoundError: There is no such log.
    """
    unknown = NotFoundError(f"there is no log {name!r}", field="name")
    # Only names from the listing: none of them has a path in it.
    if name not in {one.name for one in list_logs(folder)}:
        raise unknown
    try:
        file = (folder / f"{name}{_ENDING}").open("rb")
    except FileNotFoundError:  # It has been deleted meanwhile.
        raise unknown from None
    with file:
        size = file.seek(0, 2)
        start = max(0, size - MOST_LOG_BYTES)
        file.seek(start)
        found = file.read(MOST_LOG_BYTES).decode("utf-8", "replace").split("\n")
    if start:  # Half a line, which perhaps begins with half a secret.
        found = found[1:] if any(found[1:]) else [found[0][_MOST_OF_LINE:]]
    # Before lines are chosen: a key may have several.
    found = without_secrets("\n".join(found), known).split("\n")
    kept = found[-lines - 1 :]  # The last line ends with a line break.
    return LogTail(
        name=name,
        text="\n".join(kept),
        begins_later=start > 0 or len(kept) < len(found),
    )


def known_secrets(database_url: str, environment: Mapping[str, str]) -> list[str]:
    """Return the database's password, and the values of variables that are named like secrets."""
    password = urlsplit(database_url).password or ""
    named = [value for name, value in environment.items() if _NAMED.search(name)]
    found = {one for one in (password, unquote(password), *named) if len(one) >= _SHORTEST}
    return sorted(found, key=len, reverse=True)  # One may be a part of another.


def without_secrets(text: str, known: Collection[str] = ()) -> str:
    """Return a text without control characters and common forms of keys; long lines are cut, and say so."""
    text = _CONTROLS.sub("", text)
    for secret in known:
        text = text.replace(secret, _REPLACED)
    return "\n".join(_shown(line) for line in _PEM.sub(_REPLACED, text).split("\n"))


def _shown(line: str) -> str:
    kept = line[: 2 * _MOST_OF_LINE]  # So that no half of a secret is left where it is cut.
    for pattern in _SECRETS:
        kept = pattern.sub(_replaced, kept)
    if len(line) <= _MOST_OF_LINE:
        return kept
    return f"{kept[:_MOST_OF_LINE]} … (cut: the line has {len(line)} characters)"


def _replaced(found: re.Match[str]) -> str:
    return f"{found[1] if found.re.groups and found[1] else ''}{_REPLACED}"
