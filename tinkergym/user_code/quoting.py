"""Text of objects from users' code, safe to put into a message."""

from __future__ import annotations

_MOST_CHARACTERS = 200


def quoted(value: object, most: int = _MOST_CHARACTERS) -> str:
    """Return the beginning of `str(value)`, or the type's name if that fails."""
    try:
        return str(value)[:most]
    # Foreign code, called while reporting another error.
    except Exception as error:
        return f"<{type(value).__name__}, whose str() failed: {type(error).__name__}>"


def type_in_words(value: object) -> str:
    """Return the type of a value from users' code. None is usually a forgotten `return`."""
    return "None (did you forget `return`?)" if value is None else type(value).__name__


def printable(text: str) -> str:
    """Return a text with control characters escaped, except for new lines and tabs.

    A terminal would interpret them: move the cursor, hide text, or send input.
    """
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def raised(error: BaseException) -> str:
    """Return the type and the text of an error from users' code, on one or more lines."""
    return printable(f"{type(error).__name__}: {quoted(error, most=2000)}")
