from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 64
CONTEXT = 256


def _decoder(config: type, model: type, **extra: Any) -> Any:
    return model(
        config(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=48,
            vocab_size=VOCABULARY,
            max_position_embeddings=CONTEXT,
            **extra,
        )
    )


ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "qwen3": lambda: _decoder(Qwen3Config, Qwen3ForCausalLM, head_dim=8, tie_word_embeddings=False),
    "qwen2-tied": lambda: _decoder(Qwen2Config, Qwen2ForCausalLM, tie_word_embeddings=True),
    "llama": lambda: _decoder(LlamaConfig, LlamaForCausalLM),
    "mistral-window": lambda: _decoder(MistralConfig, MistralForCausalLM, sliding_window=6),
    "mistral": lambda: _decoder(MistralConfig, MistralForCausalLM, sliding_window=None),
    "mistral-wide-window": lambda: _decoder(MistralConfig, MistralForCausalLM, sliding_window=40),
    "granite": lambda: _decoder(GraniteConfig, GraniteForCausalLM, residual_multiplier=0.7),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=CONTEXT)
    ),
}


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write a tiny random model of an architecture to a directory, once per session."""
    made: dict[str, Path] = {}

    def make(architecture: str = "qwen3") -> Path:
        if architecture not in made:
            torch.manual_seed(len(made))
            model = ARCHITECTURES[architecture]()
            with torch.no_grad():
                for parameter in model.parameters():
                    # The usual initialisation is so small that every token is about equally likely.
                    parameter.add_(torch.randn_like(parameter) * 0.08)
            directory = tmp_path_factory.mktemp(architecture)
            model.save_pretrained(directory)
            made[architecture] = directory
        return made[architecture]

    return make


@pytest.fixture
def write_json() -> Callable[[Path, Any], None]:
    def write(path: Path, content: Any) -> None:
        path.write_text(json.dumps(content), encoding="utf-8")

    return write
