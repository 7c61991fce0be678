"""Traps of model families: one that is computed wrong, or refused too late and without a name."""

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BloomConfig,
    BloomForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    Lfm2Config,
    MambaConfig,
    MixtralConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    SiglipVisionConfig,
)

from backend.compute.weights import weights_sha256
from backend.learner.learner import Learner
from backend.learner.merging import merge_adapter
from tinkergym.errors import InvalidRequestError, UnknownModelError
from tinkergym.schema.jobs.parts import FullParameters, LoRA

VOCABULARY = 64
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIXTURES = {
    "mixtral": lambda: MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2),
    "qwen3-moe": lambda: Qwen3MoeConfig(**SHAPE, **EXPERTS, head_dim=8),
    "qwen2-moe": lambda: Qwen2MoeConfig(**SHAPE, **EXPERTS, shared_expert_intermediate_size=24),
    "deepseek-v3": lambda: DeepseekV3Config(
        **SHAPE | {"num_key_value_heads": 4},
        moe_intermediate_size=16,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        first_k_dense_replace=1,
    ),
}
RECURRENT = {
    "qwen3-next": lambda: Qwen3NextConfig(
        **SHAPE,
        **EXPERTS,
        head_dim=8,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        shared_expert_intermediate_size=16,
        layer_types=["linear_attention", "full_attention"],
    ),
    "lfm2": lambda: Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]),
}


@pytest.fixture
def make(tmp_path):
    def save(config, loader=AutoModelForCausalLM):
        torch.manual_seed(0)
        model = loader.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


def defined(model, sequence):
    """The logprobs of the sampled tokens, one sequence at a time and by transformers' own code."""
    with torch.no_grad():
        table = model(input_ids=torch.tensor([sequence.token_ids]), use_cache=False).logits[0].log_softmax(-1)
    return [float(table[t - 1, sequence.token_ids[t]]) for t, m in enumerate(sequence.loss_mask) if m]


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=[pytest.mark.full("one mixture of several")] if name != "qwen3-moe" else [])
        for name in MIXTURES
    ],
)
def test_agrees_on_experts_adapter_in_learner_engine_and_export(make, start_engine, bench, tmp_path, family):
    """Fails when the adapter is also on the router or on fused experts, as with PEFT's `all-linear`."""
    directory = make(MIXTURES[family]())
    learner, engine = Learner(directory), start_engine(directory)
    learner.create_policy("p", bench.ADAPTER, seed=1)
    bench.train(learner, "p", bench.batch(1), steps=2)
    bench.publish(learner, engine, "p", 1)
    requests = [
        bench.request(f"{i}", bench.prompt(5 + 9 * i, i), policy="p", version=1, max_tokens=12)
        for i in range(3)
    ]
    sequences = [
        bench.sequence(request, answer)
        for request, answer in zip(requests, engine.generate_together(requests), strict=True)
    ]
    learner.save("p", tmp_path / "p", step=1, policy_version=1)
    merge_adapter(tmp_path / "p", tmp_path / "merged", model="m", base=str(directory))
    base = AutoModelForCausalLM.from_pretrained(directory)
    exported = [
        PeftModel.from_pretrained(base, tmp_path / "p").eval(),
        AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval(),
    ]
    for sequence, known in zip(sequences, learner.logprobs("p", sequences), strict=True):
        sampled = [p for p in sequence.sampling_logprobs if p is not None]
        np.testing.assert_allclose(known, sampled, atol=1e-5)
        assert np.abs(learner.logprobs(None, [sequence])[0] - sampled).max() > 1e-2
        for model in exported:
            np.testing.assert_allclose(defined(model, sequence), sampled, atol=1e-5)


def test_rejects_attention_with_soft_cap_by_name_in_engine(make, start_engine):
    """Fails when the engine leaves the cap out, as transformers' fast attention does by which it is tried."""
    config = Gemma2Config(**SHAPE, head_dim=8, query_pre_attn_scalar=8, attn_logit_softcapping=2.0)
    with pytest.raises(InvalidRequestError) as caught:
        start_engine(make(config))
    assert caught.value.field == "model"


@pytest.mark.parametrize("family", RECURRENT)
def test_learns_recurrent_model_and_refuses_it_in_the_engine(make, start_engine, bench, family):
    """Fails when sequences that lie in one row are run through one state."""
    directory = make(RECURRENT[family]())
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "model"):
        start_engine(directory)
    learner, batch = Learner(directory), bench.batch(3, sequences=8)
    learner.create_policy("p", FullParameters(), seed=1)
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    for sequence, found in zip(batch, learner.logprobs("p", batch), strict=True):
        np.testing.assert_allclose(found, defined(model, sequence), atol=1e-5)


def test_keeps_sliding_window_of_vision_models(make, start_engine, bench):
    """Fails when the configuration is asked for the window and not the part of it that is about text.

    The window is longer than what is tried when a model is loaded.
    """
    eyes = SiglipVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
    )
    text = Gemma3TextConfig(
        **SHAPE, head_dim=8, sliding_window=20, layer_types=["sliding_attention", "full_attention"]
    )
    directory = make(
        Gemma3Config(
            text_config=text.to_dict(),
            vision_config=eyes.to_dict(),
            mm_tokens_per_image=4,
            boi_token_index=61,
            eoi_token_index=62,
            image_token_index=63,
        ),
        AutoModelForImageTextToText,
    )
    learner, engine = Learner(directory), start_engine(directory)
    assert learner.limits.context_length == 128
    learner.create_policy("p", bench.ADAPTER, seed=1)
    bench.train(learner, "p", bench.batch(1))
    assert not any("vision" in name for name in bench.publish(learner, engine, "p", 1).tensors)
    requests = [
        bench.request(f"{i}", [t % 60 for t in bench.prompt(40 + i, i)], policy="p", version=1)
        for i in range(3)
    ]
    batch = [
        bench.sequence(request, answer)
        for request, answer in zip(requests, engine.generate_together(requests), strict=True)
    ]
    for sequence, found in zip(batch, learner.logprobs("p", batch), strict=True):
        np.testing.assert_allclose(found, [p for p in sequence.sampling_logprobs if p is not None], atol=1e-5)


def test_says_that_model_takes_no_adapters_and_leaves_it(make, bench):
    """Fails when PEFT's own error gets out, or what it did before it is left on the model of all."""
    directory = make(MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4))
    learner, batch = Learner(directory), bench.batch(3)
    before = learner.logprobs(None, batch)
    for _ in range(2):
        with pytest.raises(InvalidRequestError) as caught:
            learner.create_policy("p", LoRA(rank=2), seed=1)
        assert caught.value.field == "adapter"
    assert all(np.array_equal(a, b) for a, b in zip(learner.logprobs(None, batch), before, strict=True))
    assert not any("lora" in name for name, _ in learner._base.lm.model.named_modules())
    learner.create_policy("p", FullParameters(), seed=1)
    bench.train(learner, "p", batch)
    assert weights_sha256(learner.weights("p"))


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=1, n_head=4),
        MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, state_size=4),
    ],
    ids=lambda config: config.model_type,
)
def test_names_type_of_a_model_without_a_context_length(make, start_engine, config):
    directory = make(config)
    with pytest.raises(UnknownModelError):
        start_engine(directory)


def test_rejects_by_its_type_a_model_that_runs_differently(monkeypatch, make):
    def refuse(*_, **__):
        raise TypeError("it wants a picture, too")

    monkeypatch.setattr(BloomForCausalLM, "forward", refuse)
    config = BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=1, n_head=4)
    with pytest.raises(InvalidRequestError, match=r"type 'bloom' cannot be trained.*a picture"):
        Learner(make(config))
