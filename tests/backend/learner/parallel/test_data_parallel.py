"""Two real processes that talk by gloo, against one learner in this process."""

import contextlib
import dataclasses
import itertools
import os
import signal
import threading

import numpy as np
import pytest
import torch

from backend.compute.weights import weights_sha256
from backend.errors import RankLostError
from backend.learner.parallel.data_parallel import DataParallelLearner
from backend.learner.sequences import BatchTotals
from backend.learner.token_loss import algorithm_loss, likelihood_loss, policy_loss
from tinkergym.algorithms import PPO
from tinkergym.errors import ConflictError, InvalidRequestError, NonFiniteLossError
from tinkergym.schema.jobs.parts import FullParameters, LoRA

MATRIX = pytest.mark.full("one of many cases of two ranks")
ADAPTERS = {"lora": LoRA(rank=4, alpha=12.0), "full": FullParameters()}
ONE_KIND = pytest.mark.parametrize("kind", [pytest.param("lora", marks=MATRIX), "full"])
"""Of an adapter, each rank has the whole, as of its model; of all parameters, each rank has a part."""


@pytest.fixture(scope="module", params=[pytest.param("copied", marks=MATRIX), "divided"])
def group(request, model_dir):
    """With full-parameter policies that are whole on each rank, or divided over both."""
    if request.param == "divided":
        yield request.getfixturevalue("divided_group")
        return
    with DataParallelLearner(model_dir, ranks=2, silence_seconds=240.0, divide_from=10**9) as group:
        yield group


@pytest.fixture
def both(group, learner, batch, tmp_path):
    """The group and a single learner with the same policies, after an update, in both."""
    for name, adapter in ADAPTERS.items():
        learner.create_policy(name, adapter, seed=3)
        learner.forward_backward(name, batch, policy_loss())  # so that no factor is 0 any more
        learner.optim_step(name, learning_rate=2e-2)
        learner.save(name, tmp_path / name / "step-1", step=1, policy_version=1)
        group.load(name, tmp_path / name / "step-1", adapter)
    yield group, learner
    with contextlib.suppress(RankLostError):
        for name in ADAPTERS:
            group.drop(name)


def assert_close(found, expected, tolerance=1e-6):
    """Of the largest entry of all, as sums that nearly cancel have their error from what they are made of."""
    assert found.keys() == expected.keys()
    scale = max(float(g.abs().max()) for g in expected.values())
    assert scale > 0
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=tolerance * scale, rtol=0.0)


@ONE_KIND
def test_takes_anothers_place_by_policy_on_every_rank(both, batch, kind, tmp_path):
    group, learner = both
    group.forward_backward(kind, batch, policy_loss())
    group.optim_step(kind, learning_rate=2e-2)
    group.load("aside", tmp_path / kind / "step-1", ADAPTERS[kind])
    group.replace(kind, "aside")
    assert "aside" not in group.policy_ids
    assert weights_sha256(group.weights(kind)) == weights_sha256(learner.weights(kind))
    for one in (group, learner):
        one.forward_backward(kind, batch, policy_loss())
    assert_close(group.gradient(kind), learner.gradient(kind))


@pytest.mark.parametrize(
    ("kind", "sequences"),
    [("lora", 9), ("full", 1), *(pytest.param(*rest, marks=MATRIX) for rest in (("lora", 1), ("full", 9)))],
)
@pytest.mark.parametrize(
    "aggregation", ["token", *(pytest.param(name, marks=MATRIX) for name in ("sequence", "constant"))]
)
def test_has_gradient_of_one_on_two_ranks_even_if_idle(both, batch, kind, aggregation, sequences):
    group, single = both
    part, loss = (
        batch[:sequences],
        policy_loss(aggregation=aggregation, constant_tokens=10, clip_low=1.0, clip_high=100.0),
    )
    expected = single.forward_backward(kind, part, loss)
    found = group.forward_backward(kind, part, loss)
    assert_close(group.gradient(kind), single.gradient(kind))
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
    for left, right in zip(found.learner_logprobs, expected.learner_logprobs, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6, rtol=1e-6)
    for name in ("logprob_gap_max", "logprob_gap_mean", "ratio_mean"):
        assert found.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-3)
    steps = [each.optim_step(kind, learning_rate=1e-3) for each in both]
    assert steps[0].grad_norm == pytest.approx(steps[1].grad_norm, rel=1e-4)


def assert_same_policy(left, right, name):
    """To within what sums over other batches differ by."""
    found, expected = (each.weights(name).tensors for each in (left, right))
    assert found.keys() == expected.keys()
    for tensor, wanted in expected.items():
        assert (found[tensor] - wanted).abs().mean() < 1e-6, tensor


@ONE_KIND
def test_decays_and_clips_on_two_ranks_as_one(both, batch, kind):
    for each in both:
        each.forward_backward(kind, batch, policy_loss())
        stepped = each.optim_step(kind, learning_rate=1e-2, weight_decay=0.5, max_grad_norm=1e-3)
        assert stepped.grad_norm > 0.01  # so that there is something to clip
    assert_same_policy(*both, kind)


@ONE_KIND
def test_skips_gradient_of_exactly_zero_on_ranks_as_one(both, batch, kind):
    silent = [dataclasses.replace(sequence, advantage=0.0) for sequence in batch]
    before = weights_sha256(both[0].weights(kind))
    for skip in (True, False):
        for each in both:
            each.forward_backward(kind, silent, policy_loss())
            stepped = each.optim_step(kind, learning_rate=1e-2, skip_zero_gradient=skip)
            assert (stepped.skipped, stepped.optimizer_step) == (skip, 1 if skip else 2)
        assert (weights_sha256(both[0].weights(kind)) == before) == skip
    assert_same_policy(*both, kind)


@MATRIX
@ONE_KIND
def test_begins_another_training_on_ranks_without_old_moments(both, batch, kind, tmp_path):
    name = f"another-{kind}"
    for each in both:
        each.load(name, tmp_path / kind / "step-1", ADAPTERS[kind], fresh_optimizer=True)
        each.forward_backward(name, batch, policy_loss())
        assert each.optim_step(name, learning_rate=1e-3).optimizer_step == 1
    assert_same_policy(*both, name)
    both[0].drop(name)


@pytest.mark.parametrize("silent", [pytest.param(0, marks=MATRIX), 1])
@pytest.mark.parametrize(
    ("loss", "counted"),
    [
        (policy_loss(clip_low=1e-6, clip_high=1e-6), "clip_fraction"),
        pytest.param(policy_loss(importance_correction="truncated"), "importance_weight_mean", marks=MATRIX),
    ],
)
def test_reports_metrics_of_one_also_if_a_rank_is_idle(both, batch, silent, loss, counted):
    pair = [dataclasses.replace(batch[i], advantage=0.0 if i == silent else -1.0) for i in (0, 1)]
    found, expected = (each.forward_backward("lora", pair, loss).metrics for each in both)
    assert expected[counted] > 0
    # Two ranks share fewer prefixes; everything else is counted alike.
    assert found.keys() == expected.keys()
    for name in found.keys() - {"shared_fraction"}:
        assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-6), name


def test_has_values_and_value_gradient_of_one_on_two_ranks(group, learner, batch, tmp_path):
    rng, adapter, loss = (
        np.random.default_rng(0),
        ADAPTERS["lora"],
        algorithm_loss(PPO(value_coefficient=0.5)),
    )
    batch = [
        dataclasses.replace(sequence, value_targets=rng.normal(0, 1, sum(sequence.loss_mask)))
        for sequence in batch
    ]
    learner.create_policy("valued", adapter, seed=3, value_head=True)
    learner.forward_backward("valued", batch, loss)
    learner.optim_step("valued", learning_rate=2e-2, value_learning_rate=0.1)
    learner.save("valued", tmp_path / "step-1", step=1, policy_version=1)
    group.load("valued", tmp_path / "step-1", adapter, value_head=True)
    for left, right in zip(group.values("valued", batch), learner.values("valued", batch), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)
        assert right.any()
    found, expected = (each.forward_backward("valued", batch, loss) for each in (group, learner))
    assert_close(group.gradient("valued"), learner.gradient("valued"))
    assert found.metrics["value_loss"] == pytest.approx(expected.metrics["value_loss"], rel=1e-4)
    for each in (group, learner):
        each.optim_step("valued", learning_rate=1e-3, value_learning_rate=0.1)
    for left, right in zip(group.values("valued", batch), learner.values("valued", batch), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-4)
    group.drop("valued")


@MATRIX
def test_adds_up_two_calls_of_batch_parts_as_one(both, batch):
    group, single = both
    totals = BatchTotals.of(batch)
    single.forward_backward("full", batch, policy_loss())
    for part in (batch[:2], batch[2:]):
        group.forward_backward("full", part, policy_loss(), totals=totals)
    assert_close(group.gradient("full"), single.gradient("full"))


TENANTS = {
    "played": (LoRA(rank=2), policy_loss()),
    "written": (LoRA(rank=5, alpha=3.0), likelihood_loss(aggregation="sequence")),
    "whole": (FullParameters(), policy_loss(loss="cispo", entropy_coefficient=0.01)),
    "valued": (LoRA(rank=3), algorithm_loss(PPO(value_coefficient=0.5))),
}


def training(group, name, batch):
    """Train for two steps, and stop after every call, so that others can be served in between."""
    adapter, loss = TENANTS[name]
    batch = [
        dataclasses.replace(
            sequence,
            advantage=1.0 if name == "written" else sequence.advantage,
            value_targets=np.linspace(-1.0, 1.0, sum(sequence.loss_mask)),
        )
        for sequence in batch
    ]
    totals = BatchTotals.of(batch)
    group.create_policy(name, adapter, seed=3, value_head=name == "valued")
    yield
    for _ in range(2):
        # Of the second part, a single sequence, one rank has nothing.
        for part in (batch[:-1], batch[-1:]):
            group.forward_backward(name, part, loss, totals=totals)
            yield
        group.optim_step(name, learning_rate=2e-2, value_learning_rate=0.1)
        yield


def taken_out(group):
    """The hashes of all policies' weights; the policies are gone."""
    found = {}
    for name in group.policy_ids:
        found[name] = weights_sha256(group.weights(name))
        group.drop(name)
    return found


@pytest.fixture
def tenants(group, make_batch):
    """Trainings that have not begun, by tenant."""
    yield {name: training(group, name, make_batch(seed=seed)) for seed, name in enumerate(TENANTS)}
    taken_out(group)


@pytest.fixture(scope="module")
def alone(group, make_batch):
    """What `taken_out` says of each tenant if there is no other."""
    found = {}
    for seed, name in enumerate(TENANTS):
        for _ in training(group, name, make_batch(seed=seed)):
            assert group.policy_ids == [name]
        found |= taken_out(group)
    assert len(set(found.values())) == len(TENANTS)
    return found


@MATRIX
def test_gets_bits_of_training_alone_for_tenants_in_turns(group, alone, tenants, batch):
    for number, _ in enumerate(itertools.zip_longest(*tenants.values())):
        group.logprobs(None, batch)
        group.create_policy("guest", LoRA(rank=4), seed=number)
        group.forward_backward("guest", batch, policy_loss())
        group.drop("guest")
    assert taken_out(group) == alone


@MATRIX
def test_gets_bits_of_training_alone_for_tenants_in_threads(group, alone, tenants):
    threads = [threading.Thread(target=list, args=(calls,)) for calls in tenants.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken_out(group) == alone


def test_continues_checkpoint_of_the_group_in_one_process_and_back(both, batch, tmp_path):
    group, single = both
    group.forward_backward("lora", batch, policy_loss())
    group.optim_step("lora", learning_rate=2e-2)
    manifest = group.save("lora", tmp_path / "step-1", step=1, policy_version=1)
    single.load("again", tmp_path / "step-1", ADAPTERS["lora"])
    assert weights_sha256(single.weights("again")) == manifest.weights_sha256
    group.load("again", tmp_path / "step-1", ADAPTERS["lora"])
    for left, right in zip(group.logprobs("again", batch), single.logprobs("again", batch), strict=True):
        # The weights are equal to the bit; the ranks compute them in batches of other sizes.
        np.testing.assert_allclose(left, right, atol=2e-5)
    group.drop("again")
    assert group.policy_ids == ["lora", "full"]


def test_raises_an_error_of_one_rank_without_half_a_gradient(both, batch):
    group, _ = both
    spoiled = [
        dataclasses.replace(
            batch[0], sampling_logprobs=[p and -1e30 for p in batch[0].sampling_logprobs], advantage=-1.0
        )
    ]
    with pytest.raises(NonFiniteLossError):
        group.forward_backward("lora", [*spoiled, *batch[1:]], policy_loss())
    with pytest.raises(ConflictError, check=lambda error: error.code == "no_gradient"):
        group.optim_step("lora", learning_rate=1e-2)
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "loss_mask"):
        group.forward_backward(
            "lora",
            [dataclasses.replace(s, loss_mask=[False] * len(s.token_ids)) for s in batch],
            policy_loss(),
        )


def test_leaves_every_rank_as_it_was_on_a_rejected_gradient(both, batch):
    group, _ = both
    for name in ADAPTERS:
        before = weights_sha256(group.weights(name))
        # So small a batch has finite losses, and gradients that are not.
        group.forward_backward(name, [dataclasses.replace(s, advantage=1e38) for s in batch], policy_loss())
        with pytest.raises(NonFiniteLossError):
            group.optim_step(name, learning_rate=1e-2)
        assert weights_sha256(group.weights(name)) == before


def test_forgets_pending_gradient_on_every_rank(both, batch, tmp_path):
    group, _ = both
    for name in ADAPTERS:
        group.forward_backward(name, batch, policy_loss())
        with pytest.raises(ConflictError, check=lambda error: error.code == "gradient_pending"):
            group.save(name, tmp_path / "of-the-group" / name / "step-1", step=1, policy_version=1)
        group.forget_gradient(name)
        group.save(name, tmp_path / "of-the-group" / name / "step-1", step=1, policy_version=1)


@pytest.mark.full("starts two ranks of its own; `test_rank_group` has ranks that die")
def test_raises_named_error_instead_of_hanging_on_a_dead_rank(model_dir, batch):
    # Processes of its own: the others of this file share theirs.
    with DataParallelLearner(model_dir, ranks=2, silence_seconds=240.0) as group:
        group.create_policy("lora", ADAPTERS["lora"], seed=3)
        group.forward_backward("lora", batch, policy_loss())
        os.kill(group.process_ids[1], signal.SIGKILL)
        with pytest.raises(RankLostError):
            group.optim_step("lora", learning_rate=1e-2)
        with pytest.raises(RankLostError):
            group.logprobs("lora", batch)
        group.close()  # as is done by whoever replaces it, while others still call it
        for call in (group.logprobs, lambda *given: group.forward_backward(*given, policy_loss())):
            with pytest.raises(RankLostError):
                call("lora", batch)
