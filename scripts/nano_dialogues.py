"""What the nano model is warmed up on: dialogues that our packs generate, in tokens, in a seeded order."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
import numpy as np
from nano_tokenizer import CHAT_TEMPLATE, TURN_END, TURN_START
from nano_warm_up import Example
from tokenizers import Tokenizer

from tinkergym.messages import Message

_TEMPLATE = jinja2.Environment(autoescape=False).from_string(CHAT_TEMPLATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of dialogue's share of every train step."""

    name: str
    module: str
    dialogues_per_step: int
    share: float
    """Of the loss."""
    options: dict[str, Any] = field(default_factory=dict)
    """For the module's `dialogues`."""


ARITHMETIC_ACCURACY = 0.3
PARTS = (
    Part(
        name="tic-tac-toe",
        module="tinkergym_board.dialogues",
        dialogues_per_step=12,
        share=0.25,
        options={"boards": ((3, 3),)},
    ),
    Part(
        name="larger boards",
        module="tinkergym_board.dialogues",
        dialogues_per_step=10,
        share=0.25,
        options={"boards": ((4, 4), (5, 4), (5, 4), (5, 4))},
    ),
    Part(name="board reading", module="nano_drills", dialogues_per_step=44, share=0.25),
    Part(
        name="arithmetic",
        module="tinkergym_math.dialogues",
        dialogues_per_step=64,
        share=0.2,
        options={"accuracy": ARITHMETIC_ACCURACY},
    ),
    Part(name="bandit", module="tinkergym_bandit.dialogues", dialogues_per_step=12, share=0.05),
)
SHORTEST_CUT, LONGEST_CUT = 64, 400
"""Tokens after which a dialogue is cut: the first at the first step, the second at the last, evenly between.

To copy from the newest board is learned sooner while there are few older ones, and short is fast.
"""
_SORTED_STEPS = 8  # the dialogues of so many steps are sorted by length, so that little is padding


def dialogues(part: Part, count: int, seed: int) -> Iterator[list[Message]]:
    """Yield `count` dialogues of a kind."""
    module = importlib.import_module(part.module)
    yield from module.dialogues(np.random.default_rng([seed, *part.name.encode()]), count, **part.options)


def rendered(messages: Sequence[Message]) -> str:
    """Return a dialogue as the chat template writes it."""
    return _TEMPLATE.render(messages=messages, add_generation_prompt=False)


def part_batches(part: Part, tokenizer: Tokenizer, steps: int, seed: int) -> list[list[Example]]:
    """Return one batch of a kind's dialogues per step."""
    per_step = part.dialogues_per_step
    texts = [rendered(messages) for messages in dialogues(part, steps * per_step, seed)]
    marks = _Marks(tokenizer)
    examples = [marks.example(encoding.ids[:LONGEST_CUT]) for encoding in tokenizer.encode_batch(texts)]
    batches: list[list[Example]] = []
    for start in range(0, len(examples), _SORTED_STEPS * per_step):
        chunk = sorted(examples[start : start + _SORTED_STEPS * per_step], key=lambda e: len(e.token_ids))
        batches += [chunk[at : at + per_step] for at in range(0, len(chunk), per_step)]
    order = np.random.default_rng([seed, steps]).permutation(len(batches))
    cuts = np.linspace(SHORTEST_CUT, LONGEST_CUT, steps).astype(int)
    return [
        [Example(example.token_ids[:cut], example.is_answer[:cut]) for example in batches[int(place)]]
        for place, cut in zip(order, cuts, strict=True)
    ]


class _Marks:
    """Finds what the assistant says in a rendered dialogue."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._start, self._end = (tokenizer.token_to_id(token) for token in (TURN_START, TURN_END))
        (self._assistant,) = tokenizer.encode("assistant\n").ids

    def example(self, token_ids: list[int]) -> Example:
        is_answer, speaking, before = [], False, -1
        for token in token_ids:
            is_answer.append(speaking)
            if token == self._end:
                speaking = False
            elif token == self._assistant and before == self._start:
                speaking = True
            before = token
        return Example(token_ids, is_answer)
