"""Micro-batches side by side: the same numbers as one after the other, whoever is done first."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from backend.learner import train_pass
from backend.learner.causal_lm import CausalLM
from backend.learner.forward_backward import PolicyBatch, begin
from backend.learner.learner import Learner
from backend.learner.token_loss import algorithm_loss, policy_loss
from backend.learner.train_pass import Found
from backend.learner.worker_threads import WorkerThreads
from tinkergym.algorithms import PPO
from tinkergym.errors import NonFiniteLossError
from tinkergym.schema.jobs.parts import FullParameters, LoRA

ADAPTERS = [LoRA(rank=4, alpha=12.0), FullParameters()]
KINDS = pytest.mark.parametrize("adapter", ADAPTERS, ids=["lora", "full"])
PATIENCE_SECONDS = 120.0
VALUED = algorithm_loss(PPO(value_coefficient=0.3, value_clip=0.5, updates_per_step=2))
LOSSES = {
    "value": VALUED,
    "ppo": policy_loss(),
    "gspo": policy_loss(loss="gspo", aggregation="sequence", clip_low=0.05, clip_high=0.05),
    "entropy": policy_loss(entropy_coefficient=0.1, aggregation="sequence"),
}


def judged(batch):
    return [
        dataclasses.replace(
            sequence,
            value_targets=np.linspace(-1, 1, sum(sequence.loss_mask), dtype=np.float32),
            old_values=np.zeros(sum(sequence.loss_mask), dtype=np.float32),
        )
        for sequence in batch
    ]


@pytest.fixture
def checkpoint(model_dir, make_batch, tmp_path, adapter):
    """A trained policy with a value head, from which learners with any number of workers go on."""
    learner = Learner(model_dir)
    learner.create_policy("p", adapter, seed=3, value_head=True)
    for _ in range(2):
        learner.forward_backward("p", judged(make_batch(seed=4)), VALUED)
        learner.optim_step("p", learning_rate=2e-2)
    learner.save("p", tmp_path / "step-2", step=2, policy_version=2)
    return tmp_path / "step-2"


def learned(model_dir, checkpoint, adapter, batch, loss, *, workers):
    learner = Learner(model_dir, cpu_threads=workers, micro_batch_tokens=240)
    learner.load("p", checkpoint, adapter, value_head=True)
    result = learner.forward_backward("p", batch, loss)
    return result, {name: tensor.clone() for name, tensor in learner.gradient("p").items()}


@KINDS
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in {"value", "gspo"} else pytest.mark.full("a loss of many"))
        for name in LOSSES
    ],
)
def test_keeps_loss_logprobs_and_gradient_whatever_the_workers(
    model_dir, checkpoint, make_batch, adapter, name
):
    batch = make_batch(seed=5, groups=6, size=4)
    batch = judged(batch) if name == "value" else batch
    alone, expected = learned(model_dir, checkpoint, adapter, batch, LOSSES[name], workers=1)
    found, gradient = learned(model_dir, checkpoint, adapter, batch, LOSSES[name], workers=3)
    assert found.loss == pytest.approx(alone.loss, abs=1e-5)
    cut = {"shared_fraction": found.metrics["shared_fraction"]}  # other micro-batches share other tokens
    assert found.metrics == pytest.approx(alone.metrics | cut, abs=1e-4)
    for one, other in zip(found.learner_logprobs, alone.learner_logprobs, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-5)
    assert gradient.keys() == expected.keys()
    assert gradient["value_head.weight"].any() == (name == "value")
    scale = max(float(tensor.abs().max()) for tensor in expected.values())
    assert scale > 0
    for parameter, tensor in expected.items():
        torch.testing.assert_close(gradient[parameter], tensor, atol=1e-5 * scale, rtol=1e-3)


@pytest.mark.parametrize(
    ("adapter", "options"),
    [
        (ADAPTERS[0], {"cpu_threads": 3}),
        (ADAPTERS[1], {"cpu_threads": 3}),
        (ADAPTERS[1], {"dtype": torch.bfloat16}),  # its gradients are taken beside the float32 weights
    ],
    ids=["lora in workers", "full in workers", "full in bfloat16"],
)
def test_sums_a_gradient_kept_aside_over_slices_of_the_head(
    model_dir, make_batch, monkeypatch, adapter, options
):
    batch = make_batch(seed=5, groups=6, size=4)
    loss = policy_loss(loss="importance_sampling")

    def gradient():
        learner = Learner(model_dir, micro_batch_tokens=240, **options)
        learner.create_policy("p", adapter, seed=3)
        learner.forward_backward("p", batch, loss)
        return {name: tensor.float().clone() for name, tensor in learner.gradient("p").items()}

    expected = gradient()
    monkeypatch.setattr(train_pass, "_HEAD_ROWS", 12)
    monkeypatch.setattr(train_pass, "_HEAD_ELEMENTS", 1)
    found = gradient()
    scale = max(float(tensor.abs().max()) for tensor in expected.values())
    tolerance = 0.05 if "dtype" in options else 1e-5
    assert scale > 0
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=tolerance * scale, rtol=0.0)


@KINDS
def test_keeps_bits_whichever_worker_is_done_first(model_dir, checkpoint, make_batch, adapter, monkeypatch):
    batch = make_batch(seed=5, groups=6, size=4)
    usual, expected = learned(model_dir, checkpoint, adapter, batch, policy_loss(), workers=3)
    run, threads = WorkerThreads.run, set()

    def last_first(workers, work, items, cores):
        ended = [threading.Event() for _ in items]

        def in_turn(numbered):
            number, item = numbered
            threads.add(threading.current_thread().name)
            found = work(item)
            assert number + 1 == len(items) or ended[number + 1].wait(PATIENCE_SECONDS)
            ended[number].set()
            return found

        return run(workers, in_turn, list(enumerate(items)), cores)

    monkeypatch.setattr(WorkerThreads, "run", last_first)
    found, gradient = learned(model_dir, checkpoint, adapter, batch, policy_loss(), workers=3)
    assert len(threads) == 3
    assert found.loss == usual.loss
    assert all(torch.equal(gradient[name], expected[name]) for name in expected)


def test_learns_next_batch_after_failing_worker_left_no_gradient(model_dir, make_batch):
    batch = make_batch(seed=5, groups=6, size=4)
    learner = Learner(model_dir, cpu_threads=3, micro_batch_tokens=240)
    learner.create_policy("p", ADAPTERS[0], seed=3)
    far = dataclasses.replace(
        batch[-1], sampling_logprobs=[None if p is None else -1e30 for p in batch[-1].sampling_logprobs]
    )
    with pytest.raises(NonFiniteLossError):
        learner.forward_backward("p", [*batch[:-1], far], policy_loss(loss="importance_sampling"))
    assert not learner.has_gradient("p")
    learner.forward_backward("p", batch, policy_loss())
    assert learner.optim_step("p", learning_rate=1e-3).grad_norm > 0


def test_works_in_parallel_and_returns_results_in_order():
    meeting = threading.Barrier(3, timeout=PATIENCE_SECONDS)

    def work(number):
        meeting.wait()
        return number * 10

    assert WorkerThreads(3).run(work, [1, 2, 3]) == [10, 20, 30]


def test_raises_an_error_only_after_the_others_finish():
    failing, go_on, errors = threading.Event(), threading.Event(), []

    def work(number):
        if number == 0:
            failing.set()
            raise ValueError("first")
        assert go_on.wait(PATIENCE_SECONDS)

    def call():
        try:
            WorkerThreads(2).run(work, [0, 1])
        except ValueError as error:
            errors.append(str(error))

    caller = threading.Thread(target=call)
    caller.start()
    assert failing.wait(PATIENCE_SECONDS)
    caller.join(0.1)
    assert caller.is_alive() and not errors
    go_on.set()
    caller.join(PATIENCE_SECONDS)
    assert errors == ["first"]


@pytest.mark.parametrize("threads", [1, 2, 7, 64])
def test_shares_threads_between_workers_and_gives_them_back(threads):
    before = torch.get_num_threads()
    workers = WorkerThreads(threads)
    found = workers.run(lambda _: torch.get_num_threads(), list(range(workers.count)))
    assert sum(found) == (before if threads == 1 else threads)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("rope_type", "workers"), [("default", 3), ("longrope", 1), ("dynamic", 1)])
def test_uses_one_worker_for_model_with_kept_state(rope_type, workers, model_dir, make_batch, tmp_path):
    rope = {"rope_type": rope_type, "rope_theta": 10_000.0}
    if rope_type == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 64}
    if rope_type == "dynamic":
        rope |= {"factor": 4.0}
    config = Qwen3Config.from_pretrained(model_dir, rope_parameters=rope)
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "model")
    lm = CausalLM.load(tmp_path / "model", device=torch.device("cpu"), dtype=torch.float32)
    turns = lm.batches(make_batch(seed=5, groups=6, size=4), max_tokens=240, workers=3)
    assert max(map(len, turns)) == workers


def test_lays_gradients_out_as_parameters_whatever_autograd_returns(model_dir, make_batch):
    learner = Learner(model_dir, cpu_threads=3, micro_batch_tokens=240)
    learner.create_policy("p", FullParameters(), seed=3)
    state, part = learner._policies["p"], PolicyBatch(sequences=make_batch(seed=5), loss=policy_loss())
    train_pass = begin(state, part, limits=learner.limits, runner=learner._runner).train_pass
    parameters = state.optimizer.parameters
    turned = [torch.ones_like(p.t()).t() if p.dim() == 2 else torch.ones_like(p) for p in parameters]
    found = Found(loss=0.0, shares={}, largest={}, input_tokens=1, computed_tokens=1, gradients=turned)
    train_pass.add(found)
    assert all(parameter.grad.stride() == parameter.stride() for parameter in parameters)
    turned[0].zero_()
    assert parameters[0].grad.all()
