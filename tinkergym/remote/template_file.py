"""A chat template that a script names as a file: read here, sent as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.chat_templates import MOST_CHARACTERS, template_text


def with_template_read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with a `chat_template` that is a path replaced by what stands in the file.

    Raises:
        InvalidRequestError: The file cannot be read.
    """
    given = settings.get("chat_template")
    if not isinstance(given, Path):
        return dict(settings)
    return {**settings, "chat_template": read_template(given)}


def read_template(given: str | Path) -> str:
    """Return the text of a template, or of the file or the name that is given in its place.

    Raises:
        InvalidRequestError: The file cannot be read, or the text is no template.
    """
    try:
        text = given.read_text(encoding="utf-8") if isinstance(given, Path) else given
        text = template_text(text)
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"cannot be used: {error}", field="chat_template") from error
    if len(text) > MOST_CHARACTERS:
        raise InvalidRequestError(f"has over {MOST_CHARACTERS} characters", field="chat_template")
    return text
