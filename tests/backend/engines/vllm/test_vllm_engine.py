"""The vLLM engine with the real vLLM: what only it can get wrong; see also `test_engine_contract.py`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

from backend.compute.weights import FullWeights
from backend.engines.asking import Asked
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from backend.settings.served_models import PACKAGED_MODELS, VllmSettings
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.schema.sampling import SampleRequest

NANO = Path(PACKAGED_MODELS["nano"])
pytestmark = pytest.mark.service
pytest.importorskip("vllm", reason="vLLM is not installed: bash scripts/install_vllm.sh")


def ask(request_id, prompt_ids, **options):
    settings = {"policy": "", "policy_version": 0, "max_tokens": 8, "seed": sum(request_id.encode())}
    return SampleRequest(request_id=request_id, prompt_ids=list(prompt_ids), **(settings | options))


def prompt(length, kind=0):
    return [20 + (11 * kind + 7 * index * (kind + 1)) % 900 for index in range(length)]


def answers(engine, requests):
    found = Asked(engine, requests).wait(240)
    assert len(found) == len(requests)
    return found


@pytest.fixture
def subject(vllm_subject):
    yield vllm_subject
    for policy in vllm_subject.engine.loaded():
        vllm_subject.engine.retire(policy)


def close_to(subject, requests, found):
    for request in requests:
        answer = found[request.request_id]
        assert answer.sampling_logprobs == pytest.approx(
            subject.expected(request, answer), abs=subject.tolerance
        )


def test_samples_by_a_seed_what_the_transformers_engine_samples(subject):
    requests = [
        ask(f"{i}", prompt(5 + 3 * i, i), temperature=t, seed=seed)
        for i, (t, seed) in enumerate([(1.0, 0), (0.5, 7), (1.5, 2**63), (0.0, 3), (1.0, 2**64 - 1)])
    ]
    other = TransformersEngine(NANO)
    expected = other.generate_together(requests)
    other.close()
    found = answers(subject.engine, requests)
    assert [found[r.request_id].token_ids for r in requests] == [answer.token_ids for answer in expected]
    alone = answers(subject.engine, requests[:1])["0"]
    assert alone.token_ids == expected[0].token_ids
    rest = ask("rest", requests[0].prompt_ids + alone.token_ids[:3], seed=0, max_tokens=5)
    assert answers(subject.engine, [rest])["rest"].token_ids == alone.token_ids[3:]


def test_filters_by_top_p_and_top_k_as_transformers_engine(subject):
    cuts = [{"top_p": 0.9}, {"top_k": 8}, {"top_p": 0.8, "top_k": 40}, {"top_p": 0.5, "temperature": 1.4}, {}]
    requests = [
        ask(f"{number}-{seed}", prompt(5 + number, seed), seed=seed, **cut)
        for number, cut in enumerate(cuts)
        for seed in range(6)
    ]
    found = answers(subject.engine, requests)
    close_to(subject, requests, found)
    other = TransformersEngine(NANO)
    try:
        expected = answers(other, requests)
    finally:
        other.close()
    for request in requests:
        name = request.request_id
        assert found[name].token_ids == expected[name].token_ids, name
        assert found[name].sampling_logprobs == pytest.approx(
            expected[name].sampling_logprobs, abs=subject.tolerance
        )


def test_samples_prompts_computed_in_parts_by_their_seed_too(subject):
    requests = [ask(f"{i}", prompt(900 - i, i), max_tokens=2) for i in range(6)]
    close_to(subject, requests, answers(subject.engine, requests))


def test_takes_turns_with_more_adapters_than_slots(subject):
    for number in range(7):
        subject.publish(f"p{number}", 1, subject.weights(number))
    requests = [
        ask(f"{i}", prompt(4 + i % 5), policy=f"p{i % 7}" if i % 8 else "", policy_version=1 if i % 8 else 0)
        for i in range(40)
    ]
    close_to(subject, requests, answers(subject.engine, requests))


def test_keeps_cache_per_policy_version_and_owner(subject):
    subject.publish("job", 1, subject.weights(1))

    def reused(owner, version):
        before = subject.engine.reused_tokens
        request = ask(
            "r", prompt(200), policy="job", policy_version=version, session_id=f"{owner}/s", max_tokens=1
        )
        answers(subject.engine, [request])
        return subject.engine.reused_tokens - before

    assert reused("ada", 1) == 0
    assert reused("ada", 1) > 100
    assert reused("bob", 1) == 0
    subject.publish("job", 2, subject.weights(1))
    assert reused("ada", 2) == 0


def test_rejects_adapter_of_another_model_and_goes_on(subject):
    weights = subject.weights(1)
    # vLLM itself takes it and passes over the layer that it does not know.
    strange = {name.replace("layers.0", "layers.77"): tensor for name, tensor in weights.tensors.items()}
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "other_model"):
        subject.engine.publish("job", 1, type(weights)(rank=4, alpha=8.0, tensors=strange))
    assert subject.engine.loaded() == {}
    close_to(subject, [ask("r", prompt(4))], answers(subject.engine, [ask("r", prompt(4))]))


def test_loses_no_answer_or_policy_with_killed_engine_core(subject):
    subject.publish("adapter", 4, subject.weights(1))
    subject.publish("full", 2, subject.full_weights(2))
    requests = [
        ask(f"{name}{i}", prompt(9 + i), policy=name, policy_version=version, max_tokens=200)
        for name, version in (("", 0), ("adapter", 4), ("full", 2))
        for i in range(4)
    ]
    restarts = subject.engine.restarts
    old = [psutil.Process(subject.engine.host_pid), *psutil.Process(subject.engine.host_pid).children(True)]
    core = next(process for process in old[1:] if "EngineCore" in " ".join(process.cmdline()))
    asked = Asked(subject.engine, requests)
    os.kill(core.pid, signal.SIGKILL)
    found = asked.wait(240)
    assert len(found) == len(requests)
    assert subject.engine.restarts == restarts + 1
    assert subject.engine.loaded() == {"adapter": 4, "full": 2}
    close_to(subject, requests, found)
    assert psutil.wait_procs(old, timeout=60)[1] == []


@pytest.mark.parametrize("loaded", [1, 4, 9, 14])
def test_fails_only_its_own_policy_by_a_broken_exchange(subject, monkeypatch, loaded):
    subject.publish("good", 1, subject.full_weights(1))
    monkeypatch.setattr(
        "backend.engines.vllm.weight_handover.names_to_load",
        lambda weights, shapes: [*list(weights.tensors)[:loaded], "no.such.tensor"],
    )
    subject.publish("bad", 1, subject.full_weights(2))
    requests = [
        ask("bad", prompt(9), policy="bad", policy_version=1),
        ask("good", prompt(9), policy="good", policy_version=1),
        ask("base", prompt(9)),
    ]
    found = [answers(subject.engine, [request])[request.request_id] for request in requests]
    assert "no.such.tensor" in found[0].error.message
    close_to(subject, requests[1:], dict(zip(["bad", "good", "base"], found, strict=True)))
    subject.engine.retire("bad")


TIED = [(Qwen2Config, {}), (Gemma2Config, {"head_dim": 32, "sliding_window": 16})]


@pytest.mark.parametrize("config_class, more", TIED, ids=["qwen2", "gemma2"])
def test_updates_tied_output_head_after_sleep(tmp_path, config_class, more):
    from backend.engines.vllm.vllm_engine import VllmEngine

    torch.manual_seed(1)
    config = config_class(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=96,
        vocab_size=128,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        **more,
    )
    base = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    base.save_pretrained(tmp_path / "tied")
    changed = AutoModelForCausalLM.from_pretrained(tmp_path / "tied", attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    engine = VllmEngine(tmp_path / "tied")
    processes = [psutil.Process(engine.host_pid), *psutil.Process(engine.host_pid).children(True)]
    folder = engine._folder
    try:
        engine.publish("full", 1, FullWeights(tensors=changed.state_dict()))
        requests = [
            ask("full", range(20, 40), policy="full", policy_version=1),
            ask("base", range(20, 40)),
        ]
        found = answers(engine, requests)
        assert engine.sleep()
        assert psutil.wait_procs(processes, timeout=60)[1] == []
        assert {name: a.token_ids for name, a in answers(engine, requests).items()} == {
            name: a.token_ids for name, a in found.items()
        }
        processes = [psutil.Process(engine.host_pid), *psutil.Process(engine.host_pid).children(True)]
    finally:
        engine.close()
    for request, model in zip(requests, (changed, base.eval()), strict=True):
        answer = found[request.request_id]
        with torch.no_grad():
            logits = model(torch.tensor([request.prompt_ids + answer.token_ids])).logits[0]
        logprobs = torch.log_softmax(logits, -1)
        expected = [float(logprobs[19 + i, token]) for i, token in enumerate(answer.token_ids)]
        assert answer.sampling_logprobs == pytest.approx(expected, abs=2e-4)
    assert psutil.wait_procs(processes, timeout=60)[1] == []
    assert not folder.exists()


def test_samples_mixture_of_experts_with_adapter_that_learner_trained(tmp_path):
    from backend.engines.vllm.vllm_engine import VllmEngine

    torch.manual_seed(0)
    model = Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            vocab_size=64,
            hidden_size=64,
            intermediate_size=96,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            num_experts=4,
            num_experts_per_tok=2,
            max_position_embeddings=128,
            initializer_range=0.2,
        )
    )
    model.save_pretrained(tmp_path)
    learner = Learner(tmp_path)
    learner.create_policy("p", LoRA(rank=4, alpha=40.0), seed=1)
    written = [
        TrainSequence(
            token_ids=[token, 7, 7, 7],
            loss_mask=[False, True, True, True],
            sampling_logprobs=[None, -4.0, -4.0, -4.0],
            advantage=1.0,
        )
        for token in range(4)
    ]
    for _ in range(3):
        learner.forward_backward("p", written, policy_loss())
        learner.optim_step("p", learning_rate=1e-2)
    engine = VllmEngine(tmp_path, settings=VllmSettings(adapters_at_once=2))
    try:
        engine.publish("p", 1, learner.weights("p"))
        request = ask("r", [5, 9, 2, 40], policy="p", policy_version=1, max_tokens=12)
        answer = answers(engine, [request])["r"]
        with pytest.raises(InvalidRequestError) as caught:
            engine.publish("whole", 1, FullWeights(tensors=model.state_dict()))
        assert caught.value.field == "adapter"
    finally:
        engine.close()
    ids = request.prompt_ids + answer.token_ids
    sampled = [False] * 4 + [True] * 12
    sequence = TrainSequence(token_ids=ids, loss_mask=sampled, sampling_logprobs=[0.0] * 16)
    assert answer.sampling_logprobs == pytest.approx(learner.logprobs("p", [sequence])[0], abs=1e-4)
    assert answer.sampling_logprobs != pytest.approx(learner.logprobs(None, [sequence])[0], abs=1e-2)
