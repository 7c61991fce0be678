"""The nano model's warm-up: ordinary next-token training on dialogues, seeded and the same on every run.

Knows tokens and a model; knows nothing of packs or files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large the model is."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    mlp: int = 384
    vocab: int = 1024
    context: int = 1024

    def config(self, *, end_of_text: int, turn_end: int) -> Qwen3Config:
        """Return the Qwen3 configuration of this shape."""
        return Qwen3Config(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            head_dim=32,
            intermediate_size=self.mlp,
            max_position_embeddings=self.context,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            # Untied: vLLM keeps a packed copy of a tied head, which a weight update would not reach.
            tie_word_embeddings=False,
            initializer_range=0.05,
            bos_token_id=None,
            eos_token_id=turn_end,
            pad_token_id=end_of_text,
            dtype="float32",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """How long and how fast the model is trained."""

    steps: int
    peak_learning_rate: float = 3e-3
    warm_up_steps: int = 30
    weight_decay: float = 0.01
    other_weight: float = 0.1
    """Weight of the tokens that the assistant does not say, whose own tokens weigh 1; reading helps to answer."""

    def learning_rate(self, step: int) -> float:
        """Rise linearly, then fall as a cosine to a twentieth."""
        if step < self.warm_up_steps:
            return self.peak_learning_rate * (step + 1) / self.warm_up_steps
        done = (step - self.warm_up_steps) / max(1, self.steps - self.warm_up_steps)
        return self.peak_learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


@dataclass(frozen=True, slots=True)
class Example:
    """A dialogue in tokens; both lists have one length."""

    token_ids: list[int]
    is_answer: list[bool]
    """True on what the assistant says, its end-of-turn token included."""


def warm_up(
    model: Qwen3ForCausalLM,
    settings: WarmUp,
    step_examples: Callable[[int], Sequence[Sequence[Example]]],
    report: Callable[[int, list[float]], None],
) -> None:
    """Train `model` in place.

    Args:
        model: Any decoder of transformers.
        settings: How long and how fast.
        step_examples: Gives a step's examples in parts of similar length; all parts make one update.
        report: Called after each step with its number and the mean loss of each part's answers, in nats per token.
    """
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
        weight_decay=settings.weight_decay,
    )
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate(step)
        optimizer.zero_grad()
        parts = step_examples(step)
        report(step + 1, [_add_gradients(model, part, settings, share=1 / len(parts)) for part in parts])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _add_gradients(
    model: Qwen3ForCausalLM, examples: Sequence[Example], settings: WarmUp, *, share: float
) -> float:
    inputs, answers, real = _tensors(examples)
    # Padding stands at the right, where no real token looks at it: no attention mask is needed.
    logits = model(input_ids=inputs).logits[:, :-1]
    losses = functional.cross_entropy(logits.transpose(1, 2), inputs[:, 1:], reduction="none")
    weights = answers + settings.other_weight * (real - answers)
    (share * (losses * weights).sum() / weights.sum()).backward()
    return float((losses.detach() * answers).sum() / answers.sum())


def _tensors(examples: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs [B, T] int64, and for the T - 1 tokens to predict whether each is an answer's, and real."""
    length = max(len(example.token_ids) for example in examples)
    inputs = torch.zeros(len(examples), length, dtype=torch.int64)
    answers, real = torch.zeros(len(examples), length), torch.zeros(len(examples), length)
    for row, example in enumerate(examples):
        n = len(example.token_ids)
        inputs[row, :n] = torch.tensor(example.token_ids)
        answers[row, :n] = torch.tensor(example.is_answer, dtype=torch.float32)
        real[row, :n] = 1.0
    return inputs, answers[:, 1:], real[:, 1:]
