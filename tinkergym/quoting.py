"""What somebody else's object says of itself, safe to put into a message."""

from __future__ import annotations

_MOST_CHARACTERS = 200


def quoted(value: object) -> str:
    """Return the beginning of `str(value)`, or the type's name where that fails."""
    try:
        return str(value)[:_MOST_CHARACTERS]
    # Foreign code, and we are on the way to report what is wrong with it.
    except Exception as error:
        return f"<{type(value).__name__}, whose text cannot be had: {type(error).__name__}>"
