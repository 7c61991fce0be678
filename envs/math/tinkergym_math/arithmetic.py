"""A sum or a difference from the data set, answered with a number."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym_math.dataset import tasks


class ArithmeticEnv(gym.Env[str, str]):
    """Answer one question of the data set. See the pack's README."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(
        self, split: str = "train", instructions: bool = False, render_mode: str | None = None
    ) -> None:
        """Set up the questions.

        Args:
            split: `train` or `test`; no question of one is in the other.
            instructions: Say what to do in a system prompt, for models that never met this text before.
            render_mode: None; there is nothing to see.

        Raises:
            InvalidRequestError: There is no such split.
        """
        self.render_mode = render_mode
        if instructions:
            self.metadata = {**self.metadata, "system_prompt": "Answer with the number, nothing else."}
        self.observation_space = spaces.Text(max_length=40, min_length=1)
        self.action_space = spaces.Text(max_length=8, min_length=0)
        self._tasks = tasks(split)
        self._answer = ""

    @property
    def task_count(self) -> int:
        """How many questions the split has; `task_index` runs from 0 to one less."""
        return len(self._tasks)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ask question number `options["task_index"]`, or one that the seed draws.

        Raises:
            InvalidRequestError: The split has no question of that number.
        """
        super().reset(seed=seed, options=options)
        index = (options or {}).get("task_index")
        if index is None:
            index = int(self.np_random.integers(len(self._tasks)))
        elif not 0 <= index < len(self._tasks):
            raise InvalidRequestError(
                f"there is no question {index!r}",
                hint=f"0 to {len(self._tasks) - 1} exist",
                field="task_index",
            )
        question, self._answer = self._tasks[index]
        return question, {"task_index": index}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Earn 1 for the right number, 0 for anything else; what is no number is counted as such."""
        if not self._answer:
            raise EpisodeProtocolError("no question is open", hint="call reset before step")
        answer, right = action.strip(), self._answer
        self._answer = ""
        correct = answer == right
        readable = answer.isascii() and answer.removeprefix("-").isdigit()
        metrics = {"correct": float(correct), "unreadable": float(not readable)}
        said = "Right." if correct else f"Wrong, it is {right}."
        return said, float(correct), True, False, {"metrics": metrics}
