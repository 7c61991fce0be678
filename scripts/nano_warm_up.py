"""The nano model's warm-up: next-token training on dialogues, identical on every run.

It only handles tokens and a model, not packs or files.
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
    layers: int = 3
    heads: int = 4
    mlp: int = 512
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
            # Untied: vLLM keeps a packed copy of a tied head, which weight updates would not reach.
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
    muon_learning_rate: float = 0.02
    """Peak learning rate for the layers' matrices (Muon, arXiv:2502.16982)."""
    adamw_learning_rate: float = 4e-3
    """Peak learning rate for embeddings, head and norms."""
    warm_up_steps: int = 30
    weight_decay: float = 0.01

    def schedule(self, step: int) -> float:
        """Return the fraction of the peak: rises linearly, then falls as a cosine to a twentieth."""
        if step < self.warm_up_steps:
            return (step + 1) / self.warm_up_steps
        done = (step - self.warm_up_steps) / max(1, self.steps - self.warm_up_steps)
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, slots=True)
class Example:
    """A dialogue in tokens; both lists have the same length."""

    token_ids: list[int]
    is_answer: list[bool]
    """True for what the assistant says, including its end-of-turn token: only that is trained on."""


def warm_up(
    model: Qwen3ForCausalLM,
    settings: WarmUp,
    step_examples: Callable[[int], Sequence[tuple[float, Sequence[Example]]]],
    report: Callable[[int, list[float]], None],
) -> None:
    """Train `model` in place.

    Args:
        model: Any decoder from transformers.
        settings: Duration and learning rates.
        step_examples: Returns a step's examples in parts, each with its share of the loss.
        report: Called after each step with its number and each part's mean answer loss, in nats per token.
    """
    optimizers = _optimizers(model, settings)
    for step in range(settings.steps):
        model.zero_grad()
        parts = step_examples(step)
        report(step + 1, [_add_gradients(model, examples, share) for share, examples in parts])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * settings.schedule(step)
            optimizer.step()


def _optimizers(model: Qwen3ForCausalLM, settings: WarmUp) -> list[tuple[torch.optim.Optimizer, float]]:
    # Muon learns sums in a tenth of AdamW's steps; it is meant for the layers' matrices.
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    decay = settings.weight_decay
    return [
        (torch.optim.Muon(matrices, weight_decay=decay), settings.muon_learning_rate),
        (torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=decay), settings.adamw_learning_rate),
    ]


def _add_gradients(model: Qwen3ForCausalLM, examples: Sequence[Example], share: float) -> float:
    inputs, is_answer = _tensors(examples)
    # Padding is on the right, where no real token attends to it, so no attention mask is needed.
    hidden = model.model(input_ids=inputs).last_hidden_state[:, :-1]
    # The head costs as much as a layer, so it only sees trained tokens.
    learned = is_answer[:, 1:]
    loss = functional.cross_entropy(model.lm_head(hidden[learned]), inputs[:, 1:][learned])
    (share * loss).backward()
    return float(loss.detach())


def _tensors(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Return token ids [B, T] int64 and whether the assistant says them [B, T] bool."""
    length = max(len(example.token_ids) for example in examples)
    inputs = torch.zeros(len(examples), length, dtype=torch.int64)
    is_answer = torch.zeros(len(examples), length, dtype=torch.bool)
    for row, example in enumerate(examples):
        n = len(example.token_ids)
        inputs[row, :n] = torch.tensor(example.token_ids)
        is_answer[row, :n] = torch.tensor(example.is_answer)
    return inputs, is_answer
