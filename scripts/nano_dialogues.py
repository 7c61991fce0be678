"""What the nano model is warmed up on: dialogues that our packs generate, in tokens, in a seeded order."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jinja2
import numpy as np
from nano_tokenizer import CHAT_TEMPLATE, TURN_END, TURN_START
from nano_warm_up import Example
from tokenizers import Tokenizer

from tinkergym.messages import Message

_TEMPLATE = jinja2.Environment(autoescape=False).from_string(CHAT_TEMPLATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One pack's share of every train step."""

    pack: str
    dialogues_per_step: int


PARTS = (
    Part(pack="board", dialogues_per_step=32),
    Part(pack="math", dialogues_per_step=128),
    Part(pack="bandit", dialogues_per_step=16),
)
LONGEST = 256
"""Tokens of a dialogue after which it is cut, so that long games do not take all the time."""
_SORTED_STEPS = 8  # the dialogues of so many steps are sorted by length, so that little is padding


def dialogues(pack: str, count: int, seed: int) -> Iterator[list[Message]]:
    """Yield `count` dialogues of an installed pack."""
    module = importlib.import_module(f"tinkergym_{pack}.dialogues")
    yield from module.dialogues(np.random.default_rng([seed, *pack.encode()]), count)


def rendered(messages: Sequence[Message]) -> str:
    """Return a dialogue as the chat template writes it."""
    return _TEMPLATE.render(messages=messages, add_generation_prompt=False)


def part_batches(part: Part, tokenizer: Tokenizer, steps: int, seed: int) -> list[list[Example]]:
    """Return one batch of a pack's dialogues per step."""
    per_step = part.dialogues_per_step
    texts = [rendered(messages) for messages in dialogues(part.pack, steps * per_step, seed)]
    marks = _Marks(tokenizer)
    examples = [marks.example(encoding.ids[:LONGEST]) for encoding in tokenizer.encode_batch(texts)]
    batches: list[list[Example]] = []
    for start in range(0, len(examples), _SORTED_STEPS * per_step):
        chunk = sorted(examples[start : start + _SORTED_STEPS * per_step], key=lambda e: len(e.token_ids))
        batches += [chunk[at : at + per_step] for at in range(0, len(chunk), per_step)]
    order = np.random.default_rng([seed, steps]).permutation(len(batches))
    return [batches[int(place)] for place in order]


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
