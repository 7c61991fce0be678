from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, JambaConfig, Lfm2Config, Llama4TextConfig

from backend.compute.device_lock import DeviceLock, can_divide_threads
from backend.engines.transformers import slot_scheduler
from backend.engines.transformers.packed_model import PackedModel
from backend.engines.transformers.transformers_engine import TransformersEngine
from tests.backend.engines.transformers.answers import (
    ask,
    assert_same_logprobs,
    complete,
    plain_model,
    prompt,
)
from tinkergym.errors import InvalidRequestError


def test_computes_long_prompts_in_parts(start, directory):
    engine = start(directory, iteration_tokens=16)
    requests = [ask(f"r{i}", prompt(50 + i, i)) for i in range(3)]
    group = [ask(f"g{i}", prompt(40, 7)) for i in range(3)]
    found = complete(engine, [*requests, *group])
    model = plain_model(directory)
    for request in (*requests, *group):
        assert_same_logprobs(model, request, found[request.request_id])
    assert engine.stats().prefilled_tokens == 50 + 51 + 52 + 40


def test_rejects_model_with_attention_that_cannot_be_packed(start, tmp_path):
    from transformers import BloomConfig, BloomForCausalLM

    BloomForCausalLM(
        BloomConfig(hidden_size=32, n_layer=1, n_head=2, vocab_size=64, seq_length=64)
    ).save_pretrained(tmp_path)
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "model"):
        start(tmp_path)


def test_divides_a_large_forward_among_threads_and_no_small_one(start, directory, monkeypatch):
    threads, logits = {}, PackedModel.logits

    def noting(model, token_ids, *others, **options):
        threads[len(token_ids)] = torch.get_num_threads()
        return logits(model, token_ids, *others, **options)

    engine = start(directory, device_lock=DeviceLock(cpu_threads=2))
    monkeypatch.setattr(PackedModel, "logits", noting)
    monkeypatch.setattr(slot_scheduler, "_UNDIVIDED", 10 * engine._model.parameter_count)
    complete(engine, [ask("a", prompt(30), max_tokens=2)])
    if not can_divide_threads():
        pytest.skip("threads cannot be divided here")
    assert threads == {30: 2, 1: 1}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("conv", lambda sizes: Lfm2Config(**sizes, layer_types=["conv", "full_attention"])),
        ("linear_attention", lambda sizes: JambaConfig(**sizes, attn_layer_period=2, attn_layer_offset=1)),
        (
            "chunked_attention",
            lambda sizes: Llama4TextConfig(**sizes, attention_chunk_size=32, num_local_experts=2),
        ),
    ],
)
def test_rejects_models_without_full_or_windowed_attention_by_name(tmp_path, kind, config):
    sizes = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    AutoModelForCausalLM.from_config(config(sizes)).save_pretrained(tmp_path)
    with pytest.raises(InvalidRequestError, match=f"layers of type {kind}"):
        TransformersEngine(tmp_path)
