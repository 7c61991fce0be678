"""What somebody else's object says of itself, safe to put into a message."""

from __future__ import annotations

_MOST_CHARACTERS = 200


def quoted(value: object, most: int = _MOST_CHARACTERS) -> str:
    """Return the beginning of `str(value)`, or the type's name where that fails."""
    try:
        return str(value)[:most]
    # Foreign code, and we are on the way to report what is wrong with it.
    except Exception as error:
        return f"<{type(value).__name__}, whose text cannot be had: {type(error).__name__}>"


def type_in_words(value: object) -> str:
    """Return the type of a value that user code returned; None is most often a forgotten `return`."""
    return "None (did you forget `return`?)" if value is None else type(value).__name__


def printable(text: str) -> str:
    """Return a text with its control characters written as escapes, but for new lines and tabs.

    A terminal would obey them: move the cursor, hide what was said, answer in the user's name.
    """
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def raised(error: BaseException) -> str:
    """Return the type and the text of an error that foreign code raised, on one or more lines."""
    return printable(f"{type(error).__name__}: {quoted(error, most=2000)}")
