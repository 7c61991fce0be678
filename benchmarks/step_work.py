"""The work shared by speed figures: a random model, prompts of equal length, answers of exactly 32 tokens.

The model cannot end an answer, so nothing has to be enforced while sampling, and every library processes the
same number of tokens.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym

import backend
import tinkergym as tg

NANO = Path(backend.__path__[0]) / "models" / "nano"
END_OF_TURN = 2
"""Id that ends an answer, in nano's tokenizer."""

GROUPS = 8
GROUP_SIZE = 8
ANSWER_TOKENS = 32
PROMPT_TOKENS = 17
"""Length of each rendered prompt."""
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A Qwen3 decoder; nano's tokenizer fits into its vocabulary."""

    hidden: int = 256
    intermediate: int = 640
    layers: int = 4
    heads: int = 8
    key_value_heads: int = 4
    head_dim: int = 32
    vocabulary: int = 1024


def prompt(digits: Sequence[int]) -> str:
    """Write a prompt of four digits; all are equally long in tokens."""
    return f"Add {' '.join(map(str, digits))}"


def fixed_prompts(count: int) -> list[str]:
    """Return distinct prompts, for libraries that do not draw them by seed."""
    return [prompt([int(digit) for digit in f"{1_009 * (number + 1):04d}"[-4:]]) for number in range(count)]


def score(answer: str) -> float:
    """Return a reward that differs between answers, so that all are trained on."""
    return len(set(answer)) + sum(map(ord, answer[:8])) % 97 / 97


class Prompts(gym.Env[str, str]):
    """One prompt, one answer, one reward."""

    def __init__(self) -> None:
        self.observation_space: gym.Space[str] = tg.spaces.Text(max_length=100)
        self.action_space: gym.Space[str] = tg.spaces.Text(max_length=10_000)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Draw a prompt by the seed."""
        super().reset(seed=seed, options=options)
        return prompt(self.np_random.integers(10, size=4).tolist()), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score the answer."""
        return "", score(action), True, False, {}


@contextmanager
def model_directory(shape: Shape | None = None) -> Iterator[Path]:
    """Write a random model with nano's tokenizer into a temporary folder, which is removed afterwards."""
    with TemporaryDirectory(prefix="tinkergym-bench-model-") as folder:
        write_model(Path(folder), shape or Shape())
        yield Path(folder)


def write_model(folder: Path, shape: Shape) -> int:
    """Write a model that never ends an answer and return its number of parameters."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=END_OF_TURN,
        pad_token_id=0,
        bos_token_id=None,
    )
    model: Any = Qwen3ForCausalLM(config)
    with torch.no_grad():
        # The first number of every hidden state is a positive constant that no layer changes, and the output
        # head uses it against the token that ends a turn.
        model.model.embed_tokens.weight[:, 0] = 0.5
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[END_OF_TURN] = 0.0
        model.lm_head.weight[END_OF_TURN, 0] = -20.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(NANO / name, folder / name)
    return sum(parameter.numel() for parameter in model.parameters())
