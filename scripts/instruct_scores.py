"""How often nano-instruct follows an instruction, at temperature 1 and greedily.

A plain loop that shares no code with the service and therefore checks it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from instruct_dialogues import KINDS
from instruct_words import CATEGORIES, OPPOSITES
from nano_dialogues import rendered
from nano_tokenizer import TURN_END, TURN_START
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from tinkergym.messages import user

_SEED = 1_000_003
_LONGEST_ANSWER = 40  # tokens


def _sum_is_right(instruction: str, answer: str) -> bool:
    a, sign, b = next(
        (int(x), s, int(y))
        for x, s, y in zip(*(instruction.rstrip("?.=").split()[i:] for i in range(3)), strict=False)
        if x.isdigit() and y.isdigit()
    )
    return answer == str(a + b if sign == "+" else a - b)


CHECKS: dict[str, tuple[str, Callable[[str, str, str], bool]]] = {
    "say": ("the words, exactly", lambda _, answer, right: answer == right),
    "choose": ("one of the options", lambda asked, answer, _: bool(answer) and answer in asked),
    "number": ("a number", lambda _, answer, __: answer.isdigit()),
    "name": (
        "words of the word list",
        lambda _, answer, __: all(
            word in {w for members in CATEGORIES.values() for w in members} for word in answer.split(", ")
        ),
    ),
    "yes or no": ("yes or no", lambda _, answer, __: answer in {"yes", "no"}),
    "add": ("the right sum or difference", lambda asked, answer, _: _sum_is_right(asked, answer)),
    "opposite": (
        "the opposite",
        lambda asked, answer, _: any(
            {answer, word} == {*pair} for pair in OPPOSITES for word in asked.rstrip("?.").split()
        ),
    ),
    "spell": ("as the data says", lambda _, answer, right: answer == right),
    "sentence": (
        "a sentence about what was asked",
        lambda asked, answer, _: answer[-1:] in {".", "!", "?"} and asked.rstrip(".").split()[-1] in answer,
    ),
}
"""For each kind of instruction: what counts as followed, and its check (instruction, answer, data's
answer)."""


def scores(model: Qwen3ForCausalLM, tokenizer: Tokenizer, count: int) -> dict[str, tuple[float, float]]:
    """Return for each kind of instruction the shares followed at temperature 1 and greedily."""
    found = {}
    for kind, (_, check) in CHECKS.items():
        rng = np.random.default_rng([_SEED, *kind.encode()])
        asked = [KINDS[kind](rng) for _ in range(count)]
        prompts = [instruction for instruction, _ in asked]
        shares = []
        for greedy in (False, True):
            answered = answers(model, tokenizer, prompts, greedy=greedy)
            followed = [check(q, answer, right) for (q, right), answer in zip(asked, answered, strict=True)]
            shares.append(sum(followed) / count)
        found[kind] = (shares[0], shares[1])
    return found


@torch.inference_mode()
def answers(model: Qwen3ForCausalLM, tokenizer: Tokenizer, prompts: list[str], *, greedy: bool) -> list[str]:
    """Answer each prompt as the only message of a conversation."""
    torch.manual_seed(0)
    stop = tokenizer.token_to_id(TURN_END)
    texts = [rendered([user(prompt)]) + f"{TURN_START}assistant\n" for prompt in prompts]
    sequences = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    starts = [len(ids) for ids in sequences]
    running = list(range(len(sequences)))
    for _ in range(_LONGEST_ANSWER):
        lengths = torch.tensor([len(sequences[row]) for row in running])
        inputs = torch.zeros(len(running), int(lengths.max()), dtype=torch.int64)
        for place, row in enumerate(running):
            inputs[place, : len(sequences[row])] = torch.tensor(sequences[row])
        hidden = model.model(input_ids=inputs).last_hidden_state[torch.arange(len(running)), lengths - 1]
        logits = model.lm_head(hidden)
        drawn = logits.argmax(-1) if greedy else torch.multinomial(logits.softmax(-1), 1).squeeze(1)
        for row, token in zip(running, drawn.tolist(), strict=True):
            sequences[row].append(token)
        running = [row for row in running if sequences[row][-1] != stop]
        if not running:
            break
    return [tokenizer.decode(ids[start:]) for ids, start in zip(sequences, starts, strict=True)]
