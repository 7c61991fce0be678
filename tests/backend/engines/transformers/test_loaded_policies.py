"""Which versions' weights the transformers engine holds, and for how long."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from backend.compute.weights import AdapterWeights, FullWeights
from backend.engines.transformers.loaded_policies import AdapterSegment, LoadedPolicies
from tinkergym.errors import InvalidRequestError


def weights(value: float) -> AdapterWeights:
    prefix = "base_model.model.layer.lora_"
    tensors = {f"{prefix}A.weight": torch.full((1, 4), value), f"{prefix}B.weight": torch.ones(3, 1)}
    return AdapterWeights(rank=1, alpha=1.0, tensors=tensors)


@pytest.fixture
def policies():
    model = nn.Module()
    model.layer = nn.Linear(4, 3)
    return LoadedPolicies(model, merged_limit=2)


def test_keeps_weights_of_older_version_until_its_last_request_ends(policies):
    policies.publish("job", 1, weights(1.0))
    old = [policies.take("job", 1), policies.take("job", None)]
    policies.publish("job", 2, weights(2.0), let_finish=True)
    policies.publish("job", 3, weights(3.0), let_finish=True)
    assert policies.loaded() == {"job": 3}
    assert policies.take("job", 1) is None
    policies.leave(old[0])
    assert old[0] is old[1]
    assert old[1].live
    assert old[1].factors
    policies.leave(old[1])
    assert not old[1].live
    assert not old[1].factors


def test_adds_each_version_to_its_own_tokens_while_another_finishes():
    model = nn.Module()
    model.layer = nn.Linear(4, 3)
    policies = LoadedPolicies(model, merged_limit=2)

    def added(*bound):
        """What stands in each policy's token, in a batch with one token of each."""
        places = [slice(at, at + 1) for at in range(len(bound))]
        policies.bind([AdapterSegment(p, place, place) for p, place in zip(bound, places, strict=True)])
        inputs = torch.ones(1, len(bound), 4)
        plain = nn.functional.linear(inputs, model.layer.weight, model.layer.bias)
        return (model.layer(inputs) - plain)[0, :, 0].tolist()

    policies.publish("job", 1, weights(1.0))
    policies.publish("other", 1, weights(3.0))
    old, other = policies.take("job", 1), policies.find("other", 1)
    assert added(old, other) == pytest.approx([4.0, 12.0])
    policies.publish("job", 2, weights(2.0), let_finish=True)
    new = policies.find("job", 2)
    assert added(new, other) == pytest.approx([8.0, 12.0])
    assert added(old, other) == pytest.approx([4.0, 12.0])
    assert added(old, new, other) == pytest.approx([4.0, 8.0, 12.0])


@pytest.mark.parametrize("tensor", ["layer.weight", "layer.bias"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_rejects_full_weights_that_are_not_finite_and_keeps_version(policies, tensor, bad):
    state = {"layer.weight": torch.ones(3, 4), "layer.bias": torch.ones(3)}
    policies.publish("job", 1, FullWeights(tensors=state))
    broken = {name: own.clone() for name, own in state.items()}
    broken[tensor].view(-1)[-1] = bad
    with pytest.raises(InvalidRequestError):
        policies.publish("job", 2, FullWeights(tensors=broken))
    assert policies.loaded() == {"job": 1}


@pytest.mark.parametrize("how", ["published over", "retired"])
def test_drops_an_older_version_with_its_policy(policies, how):
    policies.publish("job", 1, weights(1.0))
    policies.publish("other", 1, weights(1.0))
    old, other = policies.take("job", 1), policies.take("other", 1)
    policies.publish("job", 2, weights(2.0), let_finish=True)
    policies.publish("other", 2, weights(2.0), let_finish=True)
    policies.retire("job") if how == "retired" else policies.publish("job", 3, weights(3.0))
    assert not old.live
    assert other.live
    policies.leave(old)
    policies.leave(other)
    assert not other.live


def test_drops_unused_version_immediately(policies):
    policies.publish("job", 1, weights(1.0))
    idle = policies.take("job", 1)
    policies.leave(idle)
    assert idle.live
    policies.publish("job", 2, weights(2.0), let_finish=True)
    assert not idle.live


def test_rebuilds_a_mix_that_broke_off_in_the_middle(monkeypatch):
    model = nn.Module()
    model.layer, model.other = nn.Linear(4, 3), nn.Linear(4, 3)
    policies = LoadedPolicies(model, merged_limit=2)
    for value, name in enumerate(("one", "two"), start=1):
        own = weights(float(value)).tensors
        tensors = own | {key.replace("layer", "other"): tensor for key, tensor in own.items()}
        policies.publish(name, 1, AdapterWeights(rank=1, alpha=1.0, tensors=tensors))
    segments = [
        AdapterSegment(policies.find(name, 1), slice(at, at + 1), slice(at, at + 1))
        for at, name in enumerate(("one", "two"))
    ]
    put_together, calls = torch.cat, []

    def fails_once(*given, **options):
        calls.append(given)
        if len(calls) == 3:  # the second layer's
            raise MemoryError
        return put_together(*given, **options)

    monkeypatch.setattr(torch, "cat", fails_once)
    with pytest.raises(MemoryError):
        policies.bind(segments)
    policies.bind(segments)
    inputs = torch.ones(1, 2, 4)
    for layer in (model.layer, model.other):
        added = layer(inputs) - nn.functional.linear(inputs, layer.weight, layer.bias)
        torch.testing.assert_close(added[0, :, 0], torch.tensor([4.0, 8.0]))
    policies.forget_merged()
    alone = nn.functional.linear(inputs, model.layer.weight, model.layer.bias)
    torch.testing.assert_close(model.layer(inputs), alone)


@pytest.mark.parametrize("kind", ["adapter", "full"])
def test_keeps_nothing_of_a_retired_policy_that_was_used_last(policies, kind):
    state = {"layer.weight": torch.ones(3, 4), "layer.bias": torch.ones(3)}
    policies.publish("job", 1, weights(1.0) if kind == "adapter" else FullWeights(tensors=state))
    policy = policies.take("job", 1)
    policies.bind([AdapterSegment(policy, slice(0, 1), slice(0, 1))])
    used = weakref.ref(next(iter(policy.table)))
    policies.leave(policy)
    policies.retire("job")
    policies.free_retired()
    assert used() is None


def test_adds_adapter_that_may_not_be_merged():
    model = nn.Module()
    model.layer = nn.Linear(4, 3)
    policies = LoadedPolicies(model, merged_limit=0)
    policies.publish("job", 1, weights(2.0))
    policy = policies.take("job", 1)
    policies.bind([AdapterSegment(policy, slice(0, 2), slice(0, 2))])
    inputs = torch.ones(1, 2, 4)
    plain = nn.functional.linear(inputs, model.layer.weight, model.layer.bias)
    torch.testing.assert_close((model.layer(inputs) - plain)[0, :, 0], torch.tensor([8.0, 8.0]))
    assert policy.table is None


def test_keeps_tied_parameter_once():
    model = nn.Module()
    model.words, model.head = nn.Embedding(3, 4), nn.Linear(4, 3, bias=False)
    model.head.weight = model.words.weight
    policies = LoadedPolicies(model, merged_limit=1)
    policies.publish("job", 1, FullWeights(tensors={"words.weight": torch.ones(3, 4)}))
    words, head = policies.find("job", 1).table
    assert words is head
