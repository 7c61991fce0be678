"""The nano model's card: how exactly it was made, what it earns, and the hash of every file."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from nano_dialogues import ARITHMETIC_ACCURACY, LONGEST_CUT, PARTS, SHORTEST_CUT
from nano_scores import FIRST_SEED, Score
from nano_warm_up import Shape, WarmUp

FILES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The facts about one run of the recipe."""

    seed: int
    threads: int
    shape: Shape
    settings: WarmUp
    parameters: int
    seconds: float
    losses: dict[str, float]
    """Per kind of dialogue: mean answer loss at the end, nats per token."""
    scores: dict[str, Score]


def write_card(folder: Path, record: Record) -> None:
    """Write `README.md` next to the files it describes."""
    shape, settings = record.shape, record.settings
    data = "\n".join(
        f"| {part.name} | {part.dialogues_per_step} | {part.dialogues_per_step * settings.steps} "
        f"| {part.share} | {record.losses[part.name]:.3f} |"
        for part in PARTS
    )
    recipe = ", ".join(f"{name} {value}" for name, value in asdict(settings).items())
    text = f"""\
---
license: apache-2.0
library_name: transformers
---

# nano

A decoder of {record.parameters:,} parameters that knows the format of our environments' answers and
little of how to do well in them. It ships with the project so that everything can be tried and tested
without a GPU and without a download. It is of no use for anything else.

Qwen3 architecture: hidden {shape.hidden}, {shape.layers} layers, {shape.heads} heads of 32, MLP {shape.mlp},
context {shape.context}, untied embeddings, float32. Byte-level BPE of at most {shape.vocab} tokens, learned
from the packs' text and `scripts/nano_words.txt`: a cell such as `b3` is one token, a digit is one token.
ChatML template that only ever appends.

## How it was made

    python scripts/make_nano.py --seed {record.seed} --steps {settings.steps} --threads {record.threads}

{record.seconds:.0f} s on {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__},
transformers {transformers.__version__}. Random weights, then Muon (layer matrices) and AdamW
(the rest) on the next-token loss of the
assistant's tokens: {recipe}.
Every step takes dialogues of every kind, from the packs' own `dialogues` generators and from
`scripts/nano_drills.py`, cut after {SHORTEST_CUT} tokens at first and {LONGEST_CUT} at the end:

| kind | dialogues per step | in all | share of the loss | final answer loss, nats per token |
|---|---|---|---|---|
{data}

The assistant of the games moves at random among the legal moves and the bandit's pulls random arms, so good
play is not in the data. The drills ask what lies where, which cells complete a row and who has won: rules,
not which move to choose. The sums are right in
{ARITHMETIC_ACCURACY:.0%} of the dialogues and near misses in the others; the questions of the test split are
not among them.

{_scores(record.scores)}
## Files

| file | SHA-256 |
|---|---|
{hashes(folder)}
"""
    (folder / "README.md").write_text(text, encoding="utf-8")


def _scores(scores: dict[str, Score]) -> str:
    if not scores:
        return ""
    rows = "\n".join(
        f"| {name} | {score} | {score.episodes} | "
        + ", ".join(f"{metric} {value:.3f}" for metric, value in score.metrics.items())
        + " |"
        for name, score in scores.items()
    )
    return f"""\
## What it earns

Mean return at temperature 1 with 95 % intervals, seeds from {FIRST_SEED} on (`scripts/nano_scores.py`):

| environment | mean return | episodes | besides |
|---|---|---|---|
{rows}

"""


def hashes(folder: Path) -> str:
    """Return the rows of a table: each of the model's files with its SHA-256."""
    rows = []
    for name in FILES:
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        rows.append(f"| `{name}` | `{digest}` |")
    return "\n".join(rows)
