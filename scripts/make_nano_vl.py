"""Recreate the nano-vl model. Seeded; takes minutes on two cores.

A tiny Idefics3: nano's tokenizer with four more tokens, a random vision tower, connector and decoder, warmed
up on the geometry pack's dialogues. It then reads the labels of drawn figures and rarely finds their area,
which is where training should start.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nano_tokenizer import END_OF_TEXT, TURN_END, write_json
from nano_vl_card import write_card
from PIL import Image
from tinkergym_geometry.dialogues import Dialogue, areas, readings
from tinkergym_geometry.figures import SIDE
from tokenizers import AddedToken, Tokenizer
from torch.nn import functional
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    PreTrainedTokenizerFast,
)

MODELS = Path(__file__).parent.parent / "backend" / "models"
PATCH, MERGED = 8, 2
IMAGE_TOKENS = (SIDE // PATCH // MERGED) ** 2
IMAGE_MARKERS = ["<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>"]

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['content'] is string %}{{- message['content'] }}"
    "{%- else %}{%- for part in message['content'] %}"
    "{%- if part['type'] == 'image' %}{{- '<image>' }}{%- else %}{{- part['text'] }}{%- endif %}"
    "{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""nano's template, with parts. Adding a message only appends text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How large the model is, and how it is warmed up."""

    hidden: int = 128
    layers: int = 3
    mlp: int = 384
    vision_layers: int = 2
    vision_mlp: int = 256
    context: int = 1024
    steps: int = 500
    learning_rate: float = 2e-3
    rise_steps: int = 30
    readings_per_step: int = 12
    areas_per_step: int = 28
    sure_steps: int = 380
    """Number of initial steps in which all areas in the data are right."""
    accuracy: float = 0.3
    """The share of right areas after them."""


def main() -> None:
    """Run the whole recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=MODELS / "nano-vl", help="folder to write")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="train steps")
    parser.add_argument("--seed", type=int, default=0, help="decides data, order and first weights")
    parser.add_argument("--threads", type=int, default=1, help="of torch; they decide the last bits")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    recipe, started = Recipe(steps=arguments.steps), time.perf_counter()
    tokenizer = _tokenizer()
    processor = _processor(tokenizer)
    torch.manual_seed(arguments.seed)
    model = Idefics3ForConditionalGeneration(_config(tokenizer, recipe))
    losses = _warm_up(model, processor, recipe, arguments.seed)
    seconds = time.perf_counter() - started
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(TURN_END)
    model.generation_config.pad_token_id = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    arguments.output.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(arguments.output)
    processor.save_pretrained(arguments.output)
    _write_tokenizer_config(arguments.output, recipe)
    write_card(
        arguments.output,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        recipe=recipe,
        options=f"--seed {arguments.seed} --steps {arguments.steps} --threads {arguments.threads}",
        seconds=seconds,
        losses=losses,
    )
    print((arguments.output / "README.md").read_text(encoding="utf-8"))


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer.from_file(str(MODELS / "nano" / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in IMAGE_MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=IMAGE_MARKERS,
    )


def _processor(tokenizer: PreTrainedTokenizerFast) -> Idefics3Processor:
    size = {"longest_edge": SIDE}
    pictures = Idefics3ImageProcessorPil(
        size=size, max_image_size=size, do_image_splitting=False, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return Idefics3Processor(pictures, tokenizer, image_seq_len=IMAGE_TOKENS, chat_template=CHAT_TEMPLATE)


def _write_tokenizer_config(folder: Path, recipe: Recipe) -> None:
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "model_max_length": recipe.context,
            "clean_up_tokenization_spaces": False,
            "processor_class": "Idefics3Processor",
        },
    )


def _config(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Idefics3Config:
    turn_end, pad = (tokenizer.convert_tokens_to_ids(token) for token in (TURN_END, END_OF_TEXT))
    return Idefics3Config(
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=MERGED,
        # Untied: vLLM keeps a packed copy of a tied head, which weight updates would not reach.
        tie_word_embeddings=False,
        pad_token_id=pad,
        dtype="float32",
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": recipe.hidden,
            "intermediate_size": recipe.mlp,
            "num_hidden_layers": recipe.layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 32,
            "max_position_embeddings": recipe.context,
            "initializer_range": 0.05,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": turn_end,
            "pad_token_id": pad,
        },
        vision_config={
            "hidden_size": recipe.hidden,
            "intermediate_size": recipe.vision_mlp,
            "num_hidden_layers": recipe.vision_layers,
            "num_attention_heads": 4,
            "image_size": SIDE,
            "patch_size": PATCH,
            "initializer_range": 0.05,
        },
    )


def _warm_up(
    model: Idefics3ForConditionalGeneration, processor: Idefics3Processor, recipe: Recipe, seed: int
) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    # Data is generated for each step, so nothing is seen twice.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.01)
    windows: dict[str, deque[float]] = {name: deque(maxlen=50) for name in ("readings", "areas")}
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _schedule(step, recipe)
        optimizer.zero_grad()
        accuracy = 1.0 if step < recipe.sure_steps else recipe.accuracy
        parts = {
            "readings": list(readings(rng, recipe.readings_per_step)),
            "areas": list(areas(rng, recipe.areas_per_step, accuracy=accuracy)),
        }
        for name, dialogues in parts.items():
            loss = _loss(model, processor, dialogues)
            (0.5 * loss).backward()
            windows[name].append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            means = {name: round(sum(w) / len(w), 3) for name, w in windows.items()}
            print(f"step {step + 1}/{recipe.steps}", means, flush=True)
    return {name: sum(w) / len(w) for name, w in windows.items()}


def _schedule(step: int, recipe: Recipe) -> float:
    if step < recipe.rise_steps:
        return (step + 1) / recipe.rise_steps
    done = (step - recipe.rise_steps) / max(1, recipe.steps - recipe.rise_steps)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))


def _loss(model: Any, processor: Any, dialogues: Sequence[Dialogue]) -> torch.Tensor:
    """Return the mean loss of the answers' tokens, in nats."""
    tokenizer = processor.tokenizer
    texts, answers = [], []
    for pictures, question, answer in dialogues:
        content = [*({"type": "image"} for _ in pictures), {"type": "text", "text": question}]
        texts.append(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": content}],
                chat_template=CHAT_TEMPLATE,
                add_generation_prompt=True,
                tokenize=False,
            )
        )
        answers.append([*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id])
    images = [[Image.fromarray(p) for p in pictures] for pictures, _, _ in dialogues]
    inputs = processor(text=texts, images=images)
    prompts = inputs["input_ids"]
    longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    ids = torch.full((len(prompts), longest), tokenizer.pad_token_id)
    learned = torch.zeros(ids.shape, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        ids[row, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
        learned[row, len(prompt) : len(prompt) + len(answer)] = True
    # Padding is on the right, where no real token attends to it, so no attention mask is needed.
    hidden = model.model(
        input_ids=ids,
        pixel_values=torch.as_tensor(np.asarray(inputs["pixel_values"])),
        pixel_attention_mask=torch.as_tensor(np.asarray(inputs["pixel_attention_mask"])),
    ).last_hidden_state[:, :-1]
    learned = learned[:, 1:]
    return functional.cross_entropy(model.lm_head(hidden[learned]), ids[:, 1:][learned])


if __name__ == "__main__":
    main()
