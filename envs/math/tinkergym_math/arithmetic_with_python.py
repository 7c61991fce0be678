"""Sums and products too large for mental arithmetic, with Python as a tool."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from tinkergym.core import SingleTurnEnv
from tinkergym.errors import InvalidRequestError
from tinkergym.tool_calls.syntax import Syntax
from tinkergym.wrappers.tool_calling import ToolCalling

MOST_DIGITS = 100


class LargeArithmeticEnv(SingleTurnEnv):
    """Compute `a * b + c` or `a * b - c`; the seed draws the numbers."""

    metadata = {"render_modes": [], "turns": "single", "data": "free"}  # noqa: RUF012 - Gymnasium's way
    system_prompt = "Answer with the number, nothing else."

    def __init__(self, digits: int = 6, render_mode: str | None = None) -> None:
        """Set the size of the numbers.

        Raises:
            InvalidRequestError: `digits` is not an integer from 1 to 100.
        """
        super().__init__(render_mode)
        if isinstance(digits, bool) or not isinstance(digits, int) or not 1 <= digits <= MOST_DIGITS:
            raise InvalidRequestError(
                f"must be an integer from 1 to {MOST_DIGITS}, not {digits!r}", field="digits"
            )
        self._digits = digits
        self._answer = 0

    def ask(self, options: dict[str, Any]) -> str:
        """Ask for the value of an expression."""
        left, right, third = (self._number() for _ in range(3))
        operator = "+-"[int(self.np_random.integers(2))]
        self._answer = left * right + (third if operator == "+" else -third)
        return f"{left}*{right}{operator}{third}="

    def score(self, answer: str) -> tuple[float, dict[str, float]]:
        """Earn 1 for the right number, 0 for anything else; answers that are not numbers are counted."""
        said = answer.strip()
        correct = float(said == str(self._answer))
        readable = said.isascii() and said.removeprefix("-").isdigit()
        return correct, {"correct": correct, "unreadable": float(not readable)}

    def gold_action(self) -> str:
        """Return the right number."""
        return str(self._answer)

    def _number(self) -> int:
        digits = self.np_random.integers(10, size=self._digits)
        digits[0] = max(1, int(digits[0]))
        return int("".join(map(str, digits)))


def make(
    digits: int = 6,
    syntax: Syntax = "hermes",
    max_calls: int = 4,
    wall_seconds: float = 5.0,
    render_mode: str | None = None,
) -> gym.Env[Any, str]:
    """Return the environment with a Python sandbox as its tool.

    Args:
        digits: Digits of each number.
        syntax: How the model writes calls: `hermes`, `xml` or `json`.
        max_calls: Maximum tool calls per episode.
        wall_seconds: Time limit per call.
        render_mode: Must be None; there is nothing to render.
    """
    python = {"tool": "tinkergym.tools:PythonTool", "wall_seconds": wall_seconds}
    return ToolCalling(LargeArithmeticEnv(digits, render_mode), [python], syntax, max_calls=max_calls)
