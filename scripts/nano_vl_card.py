"""The nano-vl model's card: how exactly it was made, and the hash of every file."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

FILES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def write_card(
    folder: Path,
    *,
    parameters: int,
    recipe: Any,
    options: str,
    seconds: float,
    losses: Mapping[str, float],
) -> None:
    """Write `README.md` next to the files it describes."""
    settings = ", ".join(f"{name} {value}" for name, value in asdict(recipe).items())
    rows = "\n".join(f"| {name} | {loss:.3f} |" for name, loss in losses.items())
    hashes = "\n".join(
        f"| `{name}` | `{hashlib.sha256((folder / name).read_bytes()).hexdigest()}` |" for name in FILES
    )
    text = f"""\
---
license: apache-2.0
library_name: transformers
---

# nano-vl

A vision-language model of {parameters:,} parameters that reads the labels of drawn figures and rarely finds
their area. It ships with the project so that training with images can be tried and tested without a GPU
and without a download. It is of no use for anything else.

Idefics3 architecture: pictures of 64 x 64 pixels in patches of 8, each picture 16 tokens; nano's tokenizer
with four more tokens; untied embeddings, float32.

## How it was made

    python scripts/make_nano_vl.py {options}

{seconds:.0f} s on {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__},
transformers {transformers.__version__}. Random weights, then AdamW on the next-token loss of the assistant's
tokens, in dialogues of the pack `envs/geometry` (`tinkergym_geometry.dialogues`), drawn anew for each step:
{settings}.
Areas are right in the first {recipe.sure_steps} steps, and later in {recipe.accuracy:.0%} of the dialogues.
In the others they are drawn by chance, so that the right one stays the likeliest and is rarely said.
What is read off a picture, or compared between two, is always right.
Figures are drawn from the pool of which the recipes' test split is a part, so that split is held out from the
recipes' training only, not from this one.

| dialogues | final answer loss, nats per token |
|---|---|
{rows}

## Files

| file | SHA-256 |
|---|---|
{hashes}
"""
    (folder / "README.md").write_text(text, encoding="utf-8")
