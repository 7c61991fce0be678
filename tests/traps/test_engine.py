"""Traps between learner and engine: an engine that samples something else than the policy that is trained."""

from concurrent.futures import Future

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from backend.compute.weights import AdapterWeights, weights_sha256
from backend.engines.asking import Asked
from backend.learner.learner import Learner
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.schema.sampling import Completion, SampleFailure


def ask(engine, requests):
    """Submit all at once; every answer is there once."""
    found = Asked(engine, requests).wait(60)
    assert len(found) == len(requests)
    return found


def assert_same(left, right):
    assert isinstance(left, Completion), left
    assert left.token_ids == right.token_ids
    # Random adapters amplify the rounding of a sum in another order; a foreign one is off by tenths.
    np.testing.assert_allclose(left.sampling_logprobs, right.sampling_logprobs, atol=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_agrees_between_learner_and_engine_after_updates_despite_dropout(
    model_dirs, start_engine, bench, family
):
    """Fails when the engine keeps the weights of the version before, or the learner computes with dropout.

    Or when a merged weight of the learner outlives the step that changed its adapter.
    """
    learner, engine = Learner(model_dirs[family]), start_engine(model_dirs[family])
    learner.create_policy("p", bench.ADAPTER, seed=1)
    for version in range(3):
        bench.publish(learner, engine, "p", version)
        requests = [
            bench.request(
                f"{version}-{i}", bench.prompt(4 + i, i % 3), policy="p", version=version, temperature=t
            )
            for i, t in enumerate([1.0, 0.5, 1.5, 1.0, 1.0, 1.0])
        ]
        answers = ask(engine, requests)
        batch = [
            bench.sequence(request, answers[request.request_id], advantage=(-1.0) ** i)
            for i, request in enumerate(requests)
        ]
        for sequence, found in zip(batch, learner.logprobs("p", batch), strict=True):
            sampled = [p for p in sequence.sampling_logprobs if p is not None]
            np.testing.assert_allclose(found, sampled, atol=5e-5)
        bench.train(learner, "p", batch)


def test_samples_what_was_learned(model_dir, start_engine, bench, tmp_path):
    """Fails when the engine samples the base model, or when the adapter is published before its update."""
    # Behind the last norm the adapter cannot make a logit larger than the frozen head allows.
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    model.get_output_embeddings().weight.data.mul_(5)
    model.save_pretrained(tmp_path / "model")
    learner, engine = Learner(tmp_path / "model"), start_engine(tmp_path / "model")
    prompt, canary = bench.prompt(6), 42
    learner.create_policy("p", bench.ADAPTER, seed=1)
    said = Completion(
        request_id="r", token_ids=[canary], sampling_logprobs=[0.0], finish_reason="stop", policy_version=0
    )
    wanted = bench.sequence(bench.request("r", prompt), said, advantage=1.0)
    for _ in range(40):
        bench.train(learner, "p", [wanted], steps=10, learning_rate=5e-2)
        if learner.logprobs("p", [wanted])[0][0] > -1e-5:
            break
    bench.publish(learner, engine, "p", 1)
    requests = [
        bench.request(f"r{i}", prompt, policy="p", version=1, max_tokens=1, seed=i) for i in range(200)
    ]
    answers = ask(engine, requests)
    assert {answer.token_ids[0] for answer in answers.values()} == {canary}
    assert min(answer.sampling_logprobs[0] for answer in answers.values()) > -1e-4
    others = ask(engine, [bench.request(f"b{i}", prompt, max_tokens=1, seed=i) for i in range(50)])
    assert {answer.token_ids[0] for answer in others.values()} != {canary}


def test_serves_new_version_nothing_computed_by_an_old(learner, start_engine, bench):
    """Fails when a session's cache, or an equal prompt's, is found again under another version."""
    engine = start_engine()
    learner.create_policy("p", bench.ADAPTER, seed=1)
    for version in (1, 2):
        bench.train(learner, "p", bench.batch(version), learning_rate=5e-2)
        bench.publish(learner, engine, "p", version)
        # The prompts in another order the second time, so that no request takes its own old place.
        order = [(0, "s"), *((kind, "") for kind in ((1, 2, 3) if version == 1 else (3, 2, 1)))]
        requests = [
            bench.request(
                f"{kind}-{version}", bench.prompt(20, kind), policy="p", version=version, session_id=session
            )
            for kind, session in order
        ]
        answers = [ask(engine, [request])[request.request_id] for request in requests]
        for request, answer in zip(requests, answers, strict=True):
            sequence = bench.sequence(request, answer)
            np.testing.assert_allclose(
                learner.logprobs("p", [sequence])[0], answer.sampling_logprobs, atol=5e-5
            )


def adapters(learner, count):
    """Adapters of different ranks on all the model's linear layers, far from one another."""
    shapes = {}
    learner.create_policy("shape", LoRA(rank=2), seed=0)
    for name, tensor in learner.weights("shape").tensors.items():
        shapes[name] = tensor.shape
    learner.drop("shape")
    found = {}
    for number in range(count):
        rank, generator = 1 + number % 5, torch.Generator().manual_seed(number)
        tensors = {
            name: 0.12
            * torch.randn((rank, shape[1]) if "lora_A" in name else (shape[0], rank), generator=generator)
            for name, shape in shapes.items()
        }
        found[f"tenant-{number}"] = AdapterWeights(rank=rank, alpha=1.5 * rank, tensors=tensors)
    return found


def test_answers_each_of_thousand_requests_by_its_adapter_amid_changes(learner, start_engine, bench):
    """Fails when a batch's adapters are added to each other's tokens."""
    weights = adapters(learner, 16)

    def request(name, number, label=""):
        return bench.request(
            f"{label}{name}-{number}",
            bench.prompt(3 + number % 4, number % 3),
            policy=name,
            version=1,
            max_tokens=2 + number % 3,
            seed=number,
            session_id=f"s{number % 2}" if number % 2 else "",
        )

    alone_engine, alone = start_engine(), {}
    for name, own in weights.items():
        alone_engine.publish(name, 1, own)
        alone |= ask(alone_engine, [request(name, number) for number in range(8)])
        alone_engine.retire(name)

    engine = start_engine(max_slots=48, merged_adapters=2)
    names, answered, gone, wave = list(weights), 0, 0, 0
    pending: list[tuple[list, Future]] = []
    while answered < 1000:
        loaded = names[wave % 16 :][:6] + names[: max(0, wave % 16 - 10)]
        for name in set(engine.loaded()) - set(loaded):
            engine.retire(name)  # some of its requests may be on their way
        for name in loaded:
            if name not in engine.loaded():
                engine.publish(name, 1, weights[name])
        requests = [request(name, (wave + n) % 8, f"{wave}:{n}:") for n in range(8) for name in loaded]
        pending.append((requests, _later(engine, requests)))
        if len(pending) > 2:
            requests, future = pending.pop(0)
            for one, answer in zip(requests, future.result(60), strict=True):
                if isinstance(answer, SampleFailure):
                    assert answer.error.type == "PolicyVersionGoneError"
                    gone += 1
                    continue
                assert_same(answer, alone[one.request_id.rpartition(":")[2]])
                answered += 1
        wave += 1
    assert gone < answered


def _later(engine, requests):
    found, future = {}, Future()

    def deliver(answers):
        found.update({answer.request_id: answer for answer in answers})
        if len(found) == len(requests):
            future.set_result([found[request.request_id] for request in requests])

    engine.submit(requests, deliver)
    return future


def test_continues_sampling_with_an_evicted_adapter(learner, start_engine, bench):
    """Fails when a policy whose merged weights were pushed out is sampled with another table of weights.

    And when a policy that was retired under way is answered with what the base model says.
    """
    weights = adapters(learner, 4)
    calm, engine = start_engine(), start_engine(merged_adapters=1, max_slots=3)
    for name, own in weights.items():
        for each in (calm, engine):
            each.publish(name, 1, own)
    requests = [
        bench.request(
            f"{name}-{n}",
            bench.prompt(5 + n, n),
            policy=name,
            version=1,
            max_tokens=24,
            session_id=f"{name}{n}",
        )
        for n in range(3)
        for name in weights
    ]
    expected = {request.request_id: ask(calm, [request])[request.request_id] for request in requests}
    # One after the other, so that each policy in turn is alone and merged, and pushes the one before it out.
    for request in requests:
        assert_same(ask(engine, [request])[request.request_id], expected[request.request_id])
    begun = engine.stats().iterations
    together = _later(engine, requests)
    while engine.stats().iterations < begun + 2:
        pass  # a moment: its requests are accepted, and their forwards have begun
    engine.retire("tenant-2")
    for request, answer in zip(requests, together.result(60), strict=True):
        if isinstance(answer, SampleFailure):
            assert (request.policy, answer.error.type) == ("tenant-2", "PolicyVersionGoneError")
        else:
            assert_same(answer, expected[request.request_id])


def test_repeats_bits_by_seed_whatever_else_the_machine_does(model_dir, start_engine, bench):
    """Fails when a new adapter is drawn from a generator that others draw from too."""
    hashes = []
    for busy in (False, True):
        learner, engine = Learner(model_dir), start_engine()
        if busy:
            torch.manual_seed(99)
            learner.create_policy("other", LoRA(rank=5), seed=7)
        learner.create_policy("p", bench.ADAPTER, seed=1)
        for version in range(3):
            bench.publish(learner, engine, "p", version)
            requests = [
                bench.request(f"{version}-{i}", bench.prompt(4 + i % 2, i % 2), policy="p", version=version)
                for i in range(6)
            ]
            if busy:
                bench.train(learner, "other", bench.batch(version))
                ask(engine, [bench.request(f"x{version}-{i}", bench.prompt(9, i), seed=i) for i in range(5)])
            answers = engine.generate_together(requests)
            batch = [
                bench.sequence(request, answer, advantage=(-1.0) ** i)
                for i, (request, answer) in enumerate(zip(requests, answers, strict=True))
            ]
            learner.forward_backward("p", batch, bench.UNCLIPPED)
            learner.optim_step("p", learning_rate=2e-2)
        hashes.append(weights_sha256(learner.weights("p")))
    assert hashes[0] == hashes[1]
