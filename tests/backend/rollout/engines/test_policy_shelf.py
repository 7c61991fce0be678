"""Which versions' weights the embedded engine holds, and for how long."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from backend.rollout.engines.policy_shelf import PolicyShelf
from backend.weights import AdapterWeights


def weights(value: float) -> AdapterWeights:
    prefix = "base_model.model.layer.lora_"
    tensors = {f"{prefix}A.weight": torch.full((1, 4), value), f"{prefix}B.weight": torch.ones(3, 1)}
    return AdapterWeights(rank=1, alpha=1.0, tensors=tensors)


@pytest.fixture
def shelf():
    model = nn.Module()
    model.layer = nn.Linear(4, 3)
    return PolicyShelf(model, merged_limit=2)


def test_an_older_version_keeps_its_weights_until_its_last_request_is_answered(shelf):
    shelf.publish("job", 1, weights(1.0))
    old = [shelf.take("job", 1), shelf.take("job", None)]
    shelf.publish("job", 2, weights(2.0), let_finish=True)
    shelf.publish("job", 3, weights(3.0), let_finish=True)
    assert shelf.loaded() == {"job": 3}
    assert shelf.take("job", 1) is None
    shelf.leave(old[0])
    assert old[0] is old[1]
    assert old[1].live
    assert old[1].factors
    shelf.leave(old[1])
    assert not old[1].live
    assert not old[1].factors


@pytest.mark.parametrize("how", ["published over", "retired"])
def test_an_older_version_does_not_outlive_its_policy(shelf, how):
    shelf.publish("job", 1, weights(1.0))
    shelf.publish("other", 1, weights(1.0))
    old, other = shelf.take("job", 1), shelf.take("other", 1)
    shelf.publish("job", 2, weights(2.0), let_finish=True)
    shelf.publish("other", 2, weights(2.0), let_finish=True)
    shelf.retire("job") if how == "retired" else shelf.publish("job", 3, weights(3.0))
    assert not old.live
    assert other.live
    shelf.leave(old)
    shelf.leave(other)
    assert not other.live


def test_a_version_that_nobody_uses_goes_at_once(shelf):
    shelf.publish("job", 1, weights(1.0))
    idle = shelf.take("job", 1)
    shelf.leave(idle)
    assert idle.live
    shelf.publish("job", 2, weights(2.0), let_finish=True)
    assert not idle.live
