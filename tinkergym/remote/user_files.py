"""Chat templates that a script names: read here and sent as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.chat_templates import MOST_CHARACTERS, template_text
from tinkergym.schema.refusals import Refusal


def with_template_read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with a `chat_template` path replaced by the file's text.

    Raises:
        InvalidRequestError: The file cannot be read.
    """
    given = settings.get("chat_template")
    if not isinstance(given, Path):
        return dict(settings)
    return {**settings, "chat_template": read_template(given)}


def read_template(given: str | Path) -> str:
    """Return the text of a template, or of the file or named template given instead.

    Raises:
        InvalidRequestError: The file cannot be read, or the text is not a template.
    """
    try:
        written = given.read_text(encoding="utf-8") if isinstance(given, Path) else given
    except (OSError, ValueError) as error:
        hint = "name a readable text file, or pass the template itself as text"
        raise InvalidRequestError(f"cannot be used: {error}", hint=hint, field="chat_template") from error
    text = template_text(written)
    if isinstance(text, Refusal):
        raise text.error()
    if len(text) > MOST_CHARACTERS:
        raise InvalidRequestError(f"is longer than {MOST_CHARACTERS} characters", field="chat_template")
    return text
