"""`--json`: standard output has one JSON document, or one per line; everything else goes to stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import IO, Annotated, Any

import typer

from tinkergym.errors import TinkerGymError

OPTION = "--json"

AsJson = Annotated[bool, typer.Option(OPTION, help="Print one JSON document, for scripts.")]
AsJsonLines = Annotated[bool, typer.Option(OPTION, help="Print JSON lines, for scripts.")]
"""For commands with several results: each line is a document, printed as it becomes available."""

_streams: list[IO[str]] = []
"""The real standard output, while the name and the descriptor lead to stderr."""
_is_last_command = False


def is_asked_for(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON, even if it is invalid and was not parsed."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return OPTION in options and "--help" not in options


@contextmanager
def only_json() -> Iterator[None]:
    """Reserve standard output for `emit`.

    The output of environments, libraries and child processes goes to stderr, so it cannot break the JSON.
    """
    stdout = sys.stdout
    # A test, or a program that calls this one, may have replaced it.
    is_real = stdout is sys.__stdout__
    if is_real:
        stdout.flush()
        stream: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
    else:
        stream = stdout
    _streams.append(stream)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if not (is_real and _is_last_command):
            _streams.pop()
            if is_real:
                os.dup2(stream.fileno(), 1)
                stream.close()


def keep_stdout_until_the_end() -> None:
    """Keep standard output redirected after the command, because this process does nothing else.

    Environments may print when the interpreter ends, or in threads until then.
    """
    global _is_last_command  # noqa: PLW0603 - set once, by the module that starts the process
    _is_last_command = True


def hand_back() -> None:
    """Point the descriptor at the real standard output again, for a program that this process becomes."""
    for stream in _streams:
        with suppress(OSError):  # Replaced by a test, without a descriptor.
            os.dup2(stream.fileno(), 1)


def emit(document: Any) -> None:
    """Print a JSON document as one line.

    Non-finite numbers become null, because JSON cannot represent them.
    """
    stream = _streams[-1] if _streams else sys.stdout
    stream.write(json.dumps(_plain(document), allow_nan=False) + "\n")
    stream.flush()


def emit_error(error: TinkerGymError) -> None:
    """Print the error as JSON."""
    emit({"error": error.to_wire()})


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | int) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(mode="json"))
    return str(value)
