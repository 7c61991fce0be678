"""Word problems with a final answer, from files in the layout of GSM8K or MATH."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from tinkergym.core import SingleTurnEnv
from tinkergym.errors import InvalidRequestError
from tinkergym.rubrics.final_answer import final_answer, number_of, same_number
from tinkergym.rubrics.mathematics import math_equal
from tinkergym.tasks import named_tasks
from tinkergym_math.arithmetic import DATA_DIR

Layout = Literal["gsm8k", "math"]
"""`gsm8k`: `{"question", "answer"}`, where the answer ends with `#### 72`. `math`: `{"problem", "solution"}`,
where the solution contains `\\boxed{...}`."""

_PROMPTS = {
    "gsm8k": "Solve the problem. Write the final number after ####.",
    "math": "Solve the problem. Write the final answer in \\boxed{}.",
}


class WordProblemsEnv(SingleTurnEnv):
    """Solve one problem of a dataset. See the pack's README."""

    def __init__(
        self,
        data: str = "arithmetic",
        layout: Layout = "gsm8k",
        split: str = "train",
        *,
        config: str | None = None,
        instructions: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Open the dataset.

        Args:
            data: See `tinkergym.tasks.named_tasks`; `arithmetic` and `boxed_sums` come with the pack.
            layout: `gsm8k` or `math`.
            split: Split of the dataset.
            config: The hub's configuration name, such as `main`.
            instructions: Explain in a system prompt how to mark the final answer.
            render_mode: Must be None; there is nothing to render.

        Raises:
            InvalidRequestError: The dataset, split or layout does not exist.
        """
        super().__init__(render_mode)
        if layout not in get_args(Layout):
            raise InvalidRequestError(f"must be one of {', '.join(get_args(Layout))}", field="layout")
        if instructions:
            self.metadata = {**self.metadata, "system_prompt": _PROMPTS[layout]}
        self.tasks = named_tasks(data, shipped=DATA_DIR.parent, split=split, config=config)
        self._layout = layout
        self._gold = ""

    def ask(self, options: dict[str, Any]) -> str:
        """Ask problem number `options["task_index"]`, or one drawn by the seed.

        Raises:
            InvalidRequestError: The row does not have the layout; the message says what is missing.
        """
        index, task = self.tasks.choose(self.np_random, options)
        question, self._gold = problem_of(task, self._layout, index)
        return question

    def score(self, answer: str) -> tuple[float, dict[str, float]]:
        """Earn 1 for the right final answer, 0 for anything else."""
        said = final_answer(answer)
        if self._layout == "gsm8k":
            correct = said is not None and same_number(said, self._gold)
        else:
            correct = said is not None and math_equal(said, self._gold)
        marked = "####" in answer or "\\boxed{" in answer
        metrics = {"correct": float(correct), "marked": float(marked), "unreadable": float(said is None)}
        return float(correct), metrics

    def gold_action(self) -> str:
        """Return the final answer, marked as in the layout."""
        return f"#### {self._gold}" if self._layout == "gsm8k" else f"\\boxed{{{self._gold}}}"


def problem_of(task: Mapping[str, Any], layout: Layout, index: int) -> tuple[str, str]:
    """Return a row's question and final answer.

    Raises:
        InvalidRequestError: The row does not have the layout.
    """
    question, solution = ("question", "answer") if layout == "gsm8k" else ("problem", "solution")
    for name in (question, solution):
        if not isinstance(task.get(name), str) or not task[name].strip():
            raise InvalidRequestError(
                f"row {index} has no text in {name!r}, which the layout {layout!r} requires; it has "
                f"{', '.join(map(str, task)) or 'nothing'}",
                hint="choose the other layout, or rename the columns",
                field="layout",
            )
    gold = final_answer(task[solution]) if layout == "math" else task[solution].rpartition("####")[2].strip()
    if not gold or (layout == "gsm8k" and number_of(gold) is None):
        raise InvalidRequestError(
            f"row {index} has no final answer in {solution!r}",
            hint="GSM8K marks it with ####, MATH with \\boxed{...}",
            field="layout",
        )
    return task[question], gold
