from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from backend.compute.weights import AdapterWeights
from backend.engines.token_sampling import choose_tokens
from backend.engines.transformers.loaded_policies import AdapterSegment
from backend.engines.transformers.packed_batch import Span
from backend.engines.transformers.packed_model import PackedModel
from backend.engines.transformers.slot_cache import SlotCache

CPU = torch.device("cpu")
RANK = 4


def load(directory, dtype=torch.float32, *, lean=True):
    return PackedModel(directory, device=CPU, dtype=dtype, lean=lean)


def logits_of_three_steps(model):
    """Prompts of several lengths, one of them joined late, then single tokens; the past is in the cache."""
    cache = SlotCache(slots=3, length=64, device=CPU, dtype=model.dtype)
    base = model.policies.base
    found = []
    for spans in (
        [Span(0, 0, 7), Span(1, 0, 30)],
        [Span(0, 7, 1), Span(1, 30, 1), Span(2, 0, 12)],
        [Span(0, 8, 1), Span(1, 31, 1), Span(2, 12, 1)],
    ):
        tokens = [
            (31 * (s.slot + 1) + 7 * (s.start + i)) % model.vocabulary for s in spans for i in range(s.tokens)
        ]
        whole = AdapterSegment(base, slice(0, len(tokens)), slice(0, len(spans)))
        with torch.inference_mode():
            found.append(model.logits(tokens, spans, range(len(spans)), [whole], cache))
    return torch.cat(found)


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2-tied", "llama", "mistral"])
def test_runs_lean_llama_decoder_with_bits_of_its_own_modules(make_model, architecture):
    lean = load(make_model(architecture))
    assert lean.is_lean
    own = load(make_model(architecture), lean=False)
    assert not own.is_lean
    assert torch.equal(logits_of_three_steps(lean), logits_of_three_steps(own))


def test_runs_the_lean_decoder_in_bfloat16(make_model):
    lean = load(make_model("qwen3"), torch.bfloat16)
    assert lean.is_lean
    own = load(make_model("qwen3"), torch.bfloat16, lean=False)
    assert torch.equal(logits_of_three_steps(lean), logits_of_three_steps(own))


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2-tied"])
def test_runs_with_sampling_without_python(make_model, caplog, architecture):
    lean = load(make_model(architecture))
    choose_tokens(torch.zeros(1, 4), [1.0], [0], [0])
    assert lean.is_lean
    assert "is not compiled" not in caplog.text


@pytest.mark.parametrize("ranks", [RANK, 100])
def test_runs_adapters_together_or_singly_with_bits_of_own_modules(make_model, ranks):
    directory = make_model("qwen3")
    adapters = [adapter(directory, ranks, seed=seed) for seed in (1, 2)]
    lean = load(directory)
    own = load(directory, lean=False)
    found = [logits_of_several_policies(model, adapters) for model in (lean, own)]
    assert torch.equal(*found)
    base = logits_of_three_steps(own)
    assert not torch.allclose(found[0][:2], base[:2], atol=1e-3)


def test_hides_previous_user_of_a_slot_from_a_short_prompt(make_model):
    model = load(make_model("qwen3"))
    used, clean = (SlotCache(slots=2, length=64, device=CPU, dtype=torch.float32) for _ in range(2))
    run(model, used, [Span(0, 0, 20), Span(1, 0, 9)])
    spans = [Span(0, 0, 1), Span(1, 0, 1)]
    assert torch.equal(run(model, used, spans), run(model, clean, spans))


@pytest.mark.parametrize("architecture", ["mistral-window", "mistral-wide-window", "granite", "gpt2"])
def test_keeps_own_modules_of_any_other_model(make_model, architecture):
    assert not load(make_model(architecture)).is_lean


def run(model, cache, spans):
    tokens = [(17 * (s.slot + 1) + 5 * i) % model.vocabulary for s in spans for i in range(s.tokens)]
    whole = AdapterSegment(model.policies.base, slice(0, len(tokens)), slice(0, len(spans)))
    with torch.inference_mode():
        return model.logits(tokens, spans, range(len(spans)), [whole], cache)


def logits_of_several_policies(model, adapters):
    """Two adapters and the base model in one batch."""
    for name, weights in zip(("first", "second"), adapters, strict=True):
        model.policies.publish(name, 1, weights)
    first, second = (model.policies.find(name, 1) for name in ("first", "second"))
    spans = [Span(0, 0, 7), Span(1, 0, 5), Span(2, 0, 6)]
    tokens = [(31 * (s.slot + 1) + 7 * i) % model.vocabulary for s in spans for i in range(s.tokens)]
    segments = [
        AdapterSegment(first, slice(0, 7), slice(0, 1)),
        AdapterSegment(second, slice(7, 12), slice(1, 2)),
        AdapterSegment(model.policies.base, slice(12, 18), slice(2, 3)),
    ]
    cache = SlotCache(slots=3, length=64, device=CPU, dtype=torch.float32)
    with torch.inference_mode():
        return model.logits(tokens, spans, range(3), segments, cache)


def adapter(directory, rank, *, seed):
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for path, module in AutoModelForCausalLM.from_pretrained(directory).named_modules():
        if isinstance(module, torch.nn.Linear) and path != "lm_head":
            name = f"base_model.model.{path}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(rank, module.in_features, generator=draw)
            tensors[f"{name}.lora_B.weight"] = torch.randn(module.out_features, rank, generator=draw)
    return AdapterWeights(rank=rank, alpha=0.1 * rank, tensors=tensors)
