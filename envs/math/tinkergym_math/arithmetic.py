"""A sum or a difference from the dataset, answered with a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinkergym.core import SingleTurnEnv
from tinkergym.tasks import JsonlTasks

DATA_DIR = Path(__file__).parent / "data" / "arithmetic"
"""`train.jsonl` and `test.jsonl`; each line is a task: `{"question": "47+38=", "answer": "85"}`."""

_LARGEST = 198
"""99 + 99."""


class ArithmeticEnv(SingleTurnEnv):
    """Answer one question of the dataset. See the pack's README."""

    def __init__(
        self, split: str = "train", instructions: bool = False, render_mode: str | None = None
    ) -> None:
        """Open the split.

        Args:
            split: `train` or `test`, which share no question.
            instructions: Explain the task in a system prompt, for models not trained on it.
            render_mode: Must be None; there is nothing to render.

        Raises:
            InvalidRequestError: The split does not exist.
        """
        super().__init__(render_mode)
        if instructions:
            self.metadata = {**self.metadata, "system_prompt": "Answer with the number, nothing else."}
        self.tasks = JsonlTasks(DATA_DIR, split=split)
        self._answer = ""

    def ask(self, options: dict[str, Any]) -> str:
        """Ask question number `options["task_index"]`, or one drawn by the seed.

        Raises:
            InvalidRequestError: The split has no question with that number.
        """
        _, task = self.tasks.choose(self.np_random, options)
        self._answer = task["answer"]
        return str(task["question"])

    def score(self, answer: str) -> tuple[float, dict[str, float]]:
        """Earn 1 for the right number, 0 for anything else; answers that are not numbers are counted."""
        said = answer.strip()
        correct = float(said == self._answer)
        readable = said.isascii() and said.removeprefix("-").isdigit()
        return correct, {"correct": correct, "unreadable": float(not readable)}

    def gold_action(self) -> str:
        """Return the right number."""
        return self._answer

    def legal_actions(self) -> list[str]:
        """Return every number that answers some question."""
        return [str(number) for number in range(_LARGEST + 1)]
