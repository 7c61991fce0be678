"""Generate the dataset that ships with the pack: `python -m tinkergym_math.make_data`.

Seeded, so running it again writes the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tinkergym_math.arithmetic import DATA_DIR
from tinkergym_math.problems import Problem, all_problems

SEED = 20240
SIZES = {"train": (90, 1000, 1910), "test": (15, 170, 315)}
"""Problems per split with 0, 1 and 2 two-digit numbers; learning starts with the few easy ones."""

BOXED_DIR = DATA_DIR.parent / "boxed_sums"
BOXED_SIZES = {"train": 100, "test": 50}


def make(folder: Path) -> None:
    """Write `<split>.jsonl` for each split into `folder`.

    The splits share no problem or mirrored problem: `3+5` in one excludes `5+3` from the other.
    """
    rng = np.random.default_rng(SEED)
    chosen: dict[str, list[Problem]] = {split: [] for split in SIZES}
    for difficulty in range(3):
        pool = [problem for problem in all_problems() if problem.difficulty == difficulty]
        order = iter(rng.permutation(len(pool)))
        for split, sizes in SIZES.items():
            for _ in range(sizes[difficulty]):
                problem = pool[int(next(order))]
                chosen[split].append(problem.mirrored if rng.random() < 0.5 else problem)
    for split, problems in chosen.items():
        lines = []
        for index in rng.permutation(len(problems)):
            problem = problems[int(index)]
            lines.append(json.dumps({"question": problem.question, "answer": str(problem.answer)}))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_boxed(folder: Path) -> None:
    """Write some of the problems of each split into `folder`, in the layout of MATH."""
    for split, count in BOXED_SIZES.items():
        lines = []
        for line in (DATA_DIR / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()[:count]:
            task = json.loads(line)
            solution = f"We calculate. The answer is $\\boxed{{{task['answer']}}}$."
            row = {
                "problem": task["question"],
                "level": "Level 1",
                "type": "Prealgebra",
                "solution": solution,
            }
            lines.append(json.dumps(row))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    DATA_DIR.mkdir(parents=True, exist_ok=True)
    make(DATA_DIR)
    BOXED_DIR.mkdir(parents=True, exist_ok=True)
    make_boxed(BOXED_DIR)
