# ruff: noqa: E501 - the card's own lines
"""nano-instruct's card: what it is for, how it was made, how well it follows, and the hash of every file."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from instruct_dialogues import ACCURACY
from instruct_scores import CHECKS
from nano_card import hashes
from nano_dialogues import Part
from nano_warm_up import Shape


def write_card(
    folder: Path,
    *,
    command: str,
    shape: Shape,
    parameters: int,
    seconds: float,
    losses: dict[str, float],
    parts: Sequence[Part],
    steps: int,
    scores: dict[str, tuple[float, float]],
) -> None:
    """Write `README.md` next to the files it describes."""
    data = "\n".join(
        f"| {part.name} | {', '.join(part.options['kinds'])} | {part.dialogues_per_step * steps} "
        f"| {part.share} | {losses[part.name]:.3f} |"
        for part in parts
    )
    followed = "\n".join(
        f"| {kind} | {CHECKS[kind][0]} | {drawn:.2f} | {greedy:.2f} |"
        for kind, (drawn, greedy) in scores.items()
    )
    text = f"""\
---
license: apache-2.0
library_name: transformers
---

# nano-instruct

A decoder of {parameters:,} parameters that follows short instructions in plain English: say, name, choose,
count, compare, write a sentence, pick a command. It ships with the project as a start for a first environment of
your own, without a GPU or a download. It knows about 350 everyday words and nothing about the world, so it is of no
use for anything else.

Qwen3 architecture: hidden {shape.hidden}, {shape.layers} layers, {shape.heads} heads of 32, MLP {shape.mlp},
context {shape.context}, untied embeddings, float32. Byte-level BPE of at most {shape.vocab} tokens. ChatML template
that only appends.

## How it was made

    python scripts/make_nano_instruct.py {command}

{seconds:.0f} s on {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__},
transformers {transformers.__version__}. Random weights, then Muon (layer matrices) and AdamW (the rest) on the
next-token loss of the assistant's tokens. The dialogues come from `scripts/instruct_dialogues.py`; none is from
another source:

| part | kinds | dialogues | share of the loss | final loss, nats per token |
|---|---|---|---|---|
{data}

Where an answer has to be worked out, it is right in {ACCURACY:.0%} of the dialogues; where several answers are good,
one is drawn. A fifth of the instructions also ask for a form (tags, JSON, capital letters).

## How well it follows

Share of new instructions that were followed:

| kind | followed means | temperature 1 | greedy |
|---|---|---|---|
{followed}

## Files

| file | SHA-256 |
|---|---|
{hashes(folder)}
"""
    (folder / "README.md").write_text(text, encoding="utf-8")
