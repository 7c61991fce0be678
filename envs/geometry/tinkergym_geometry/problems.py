"""Problems about pictures with a final answer, from datasets in the format of geometry3k."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.rubrics.final_answer import final_answer, number_of, same_number
from tinkergym.rubrics.mathematics import math_equal
from tinkergym.spaces import Image, Text
from tinkergym.tasks import TaskSource, named_tasks
from tinkergym.tasks.grid import with_tasks
from tinkergym_geometry.drawn import drawn_tasks
from tinkergym_geometry.figures import SIDE
from tinkergym_geometry.records import Problem, problem_of

DRAWN = "drawn"
_MOST_SIDE = 4096
_PROMPT = "Solve the problem. Write the final answer in \\boxed{}."

Observation = dict[str, Any]
"""`images` and `text`."""


class ProblemsEnv(gym.Env[Observation, str]):
    """Solve a problem of a dataset about the pictures shown with it. See the pack's README."""

    metadata: dict[str, Any] = {"render_modes": [], "turns": "single", "data": "dependent"}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(
        self,
        data: str = DRAWN,
        split: str = "train",
        *,
        config: str | None = None,
        side: int = SIDE,
        swapped: bool = False,
        instructions: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Open the dataset.

        Args:
            data: `drawn`, which comes with the pack, or as in `tinkergym.tasks.named_tasks`.
            split: Split of the dataset.
            config: The hub's configuration name.
            side: Height and width in pixels to which pictures are fitted, with white around them.
            swapped: Show the pictures of another problem, as a control: then there is nothing to learn.
            instructions: Explain in a system prompt how to mark the final answer.
            render_mode: Must be None; there is nothing to render.

        Raises:
            InvalidRequestError: There is no such dataset or split, or `side` is out of range.
        """
        if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= _MOST_SIDE:
            raise InvalidRequestError(f"must be from 1 to {_MOST_SIDE}, not {side!r}", field="side")
        self.render_mode = render_mode
        self.tasks: TaskSource = (
            drawn_tasks(split) if data == DRAWN else named_tasks(data, split=split, config=config)
        )
        self.metadata = with_tasks(self.metadata, self.tasks)
        if instructions:
            self.metadata["system_prompt"] = _PROMPT
        # A sequence, so that a turn after the first can show none.
        self.observation_space = gym.spaces.Dict(
            {"images": gym.spaces.Sequence(Image(side, side)), "text": Text()}
        )
        self.action_space = Text()
        self._side, self._swapped = side, swapped
        self._gold: str | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Ask problem number `options["task_index"]`, or one that the seed draws.

        Raises:
            InvalidRequestError: The row is not of the format; says what it lacks.
        """
        super().reset(seed=seed)
        index, record = self.tasks.choose(self.np_random, options)
        problem = self._read(record, index)
        images = problem.images
        if self._swapped and len(self.tasks) > 1:
            # Drawn for each episode: of a fixed exchange the answers could be learned by heart.
            other = (index + 1 + int(self.np_random.integers(len(self.tasks) - 1))) % len(self.tasks)
            images = self._read(self.tasks[other], other).images
        self._gold = problem.answer
        return {"images": images, "text": problem.text}, {}

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Earn 1 for the right final answer, 0 for anything else.

        Raises:
            EpisodeProtocolError: No episode is running.
        """
        if self._gold is None:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        said, gold = final_answer(action), self._gold
        self._gold = None
        correct = float(said is not None and _equal(said, gold))
        metrics = {"correct": correct, "unreadable": float(said is None)}
        return {"images": (), "text": ""}, correct, True, False, {"metrics": metrics}

    def gold_action(self) -> str:
        """Return the final answer, marked unless it is a number."""
        assert self._gold is not None
        return self._gold if number_of(self._gold) is not None else f"\\boxed{{{self._gold}}}"

    def _read(self, record: dict[str, Any], index: int) -> Problem:
        return problem_of(record, index, self._side)


def _equal(said: str, gold: str) -> bool:
    if said == gold or same_number(said, gold):
        return True
    both_numbers = number_of(said) is not None and number_of(gold) is not None
    return not both_numbers and math_equal(said, gold)
