"""The final answer of a solution: what its text marks as such, else its last number. Pure."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_MOST_CHARACTERS = 100_000


def final_answer(text: str) -> str | None:
    r"""Return a text's final answer: what follows `####`, what the last `\boxed{}` holds, or the last number.

    Returns:
        None if it gives none.
    """
    text = text[-_MOST_CHARACTERS:]
    if "####" in text:
        return text.rpartition("####")[2].strip() or None
    if "\\boxed{" in text:
        return _braced(text.rpartition("\\boxed{")[2])
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def number_of(text: str) -> Decimal | None:
    """Return the number that a final answer is, as `72`, `$1,024` or `3.50`; None if it is none."""
    try:
        number = Decimal(text.strip().rstrip(".").lstrip("$").replace(",", ""))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def same_number(said: str, gold: str) -> bool:
    """Whether two final answers are the same number."""
    left, right = number_of(said), number_of(gold)
    return left is not None and left == right


def _braced(text: str) -> str | None:
    """Return the text up to the brace that closes one opened before it."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:place].strip() or None
    return None
