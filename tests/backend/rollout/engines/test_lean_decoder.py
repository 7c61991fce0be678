from __future__ import annotations

import pytest
import torch

from backend.rollout.engines.lean_decoder import LeanDecoder
from backend.rollout.engines.packed_batch import Span
from backend.rollout.engines.packed_model import PackedModel
from backend.rollout.engines.policy_shelf import AdapterSegment
from backend.rollout.engines.slot_cache import SlotCache

CPU = torch.device("cpu")


def load(directory):
    return PackedModel(directory, device=CPU, dtype=torch.float32)


def logits_of_three_steps(model):
    """Prompts of several lengths, one of them joined late, then single tokens; the past is in the cache."""
    cache = SlotCache(slots=3, length=64, device=CPU, dtype=torch.float32)
    base = model.shelf.base
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
def test_a_llama_like_decoder_is_run_lean_and_gives_the_bits_of_its_own_modules(
    make_model, monkeypatch, architecture
):
    lean = load(make_model(architecture))
    assert lean.is_lean
    monkeypatch.setattr(LeanDecoder, "__init__", refuse)
    own = load(make_model(architecture))
    assert not own.is_lean
    assert torch.equal(logits_of_three_steps(lean), logits_of_three_steps(own))


@pytest.mark.parametrize("architecture", ["mistral-window", "mistral-wide-window", "granite", "gpt2"])
def test_any_other_keeps_its_own_modules(make_model, architecture):
    assert not load(make_model(architecture)).is_lean


def refuse(*_):
    raise AttributeError("none such")
