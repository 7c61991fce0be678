"""The token of an environment server: given, read from a file, from the environment, or generated."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.names import TOKEN_VARIABLE


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and whether it must still be shown to the user."""

    text: str = field(repr=False)
    drawn: bool


def choose_token(token: str | None, file: Path | None, environ: Mapping[str, str] = os.environ) -> Token:
    """Return the given token, else the file's, else the environment variable's, else a new one.

    Raises:
        InvalidRequestError: Both were given, or the file has none.
    """
    if token is not None and file is not None:
        raise InvalidRequestError("pass either --token or --token-file", field="token")
    if token is not None:
        return Token(token, drawn=False)
    if file is not None:
        return Token(read_token(file), drawn=False)
    if environ.get(TOKEN_VARIABLE):
        return Token(environ[TOKEN_VARIABLE], drawn=False)
    return Token(secrets.token_urlsafe(24), drawn=True)


def read_token(file: Path) -> str:
    """Return the token in a file, without the line break.

    Raises:
        InvalidRequestError: The file cannot be read or is empty.
    """
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidRequestError(f"{file} cannot be read: {reason}", field="token_file") from None
    if not text:
        raise InvalidRequestError(f"{file} is empty", hint="write the token into it", field="token_file")
    return text
