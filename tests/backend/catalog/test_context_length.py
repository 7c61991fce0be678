from __future__ import annotations

import pytest

from backend.catalog.models import (
    read_model_facts,
)

TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "</s>": 2}},
    "added_tokens": [{"id": 3, "content": "<|im_end|>"}, {"id": 2, "content": "</s>"}],
}


TEMPLATE = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"


@pytest.fixture
def directory(make_model, write_json, tmp_path):
    """A model directory of its own that a test may change."""
    for file in make_model("qwen3").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_json(tmp_path / "tokenizer.json", TOKENIZER)
    write_json(
        tmp_path / "tokenizer_config.json",
        {"chat_template": TEMPLATE, "eos_token": {"content": "</s>", "lstrip": False}, "bos_token": "a"},
    )
    return tmp_path


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"n_positions": 77}, 77),
        ({"text_config": {"max_position_embeddings": 88}}, 88),
        ({"max_position_embeddings": 99, "rope_scaling": {"type": "yarn", "factor": 2}}, 99),
        (
            {
                "max_position_embeddings": 99,
                "rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 11},
            },
            11,
        ),
    ],
)
def test_takes_the_context_length_that_positions_allow(directory, write_json, config, context):
    write_json(directory / "config.json", config)
    assert read_model_facts(directory).context_length == context
