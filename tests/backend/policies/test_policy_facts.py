"""What is recorded of one policy: its publishes, comparisons, and the effect of its first change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from backend.compute.weights import AdapterWeights
from backend.learner.sequences import TrainSequence
from backend.policies.policy_facts import PolicyFacts
from tinkergym.schema.certificate import AdapterFacts, AgreementFacts, PublishFacts


def weights(*values):
    """Return an adapter with one B matrix per value."""
    tensors = {f"layer{n}.lora_B.weight": torch.full((2, 2), float(one)) for n, one in enumerate(values)}
    return AdapterWeights(rank=2, alpha=2.0, tensors=tensors | {"layer0.lora_A.weight": torch.ones(2, 2)})


@pytest.fixture
def recorded():
    return PolicyFacts("o", 2)


def bodies(recorded, kind):
    return [fact.body for fact in recorded.take() if isinstance(fact.body, kind)]


def test_records_each_publish_with_its_hash(recorded):
    recorded.published(0, weights(0.0), "a")
    recorded.published(3, weights(0.0), "b")
    facts = recorded.take()
    assert [(fact.kind, fact.agent, fact.number, fact.attempt) for fact in facts] == [
        ("publish", "o", 0, 2),
        ("publish", "o", 3, 2),
    ]
    assert [fact.body for fact in facts] == [
        PublishFacts(agent="o", version=version, attempt=2, weights_sha256=sha)
        for version, sha in ((0, "a"), (3, "b"))
    ]
    assert recorded.take() == []


def test_records_the_first_change_only(recorded):
    # That of version 0 came with the policy.
    for version, values in ((0, (1.0,)), (1, (0.0, 0.0)), (2, (0.0, 3.0)), (3, (4.0, 4.0))):
        recorded.published(version, weights(*values), "a")
    (found,) = bodies(recorded, AdapterFacts)
    assert (found.version, found.tensors, found.nonzero_tensors, found.norm) == (2, 2, 1, 6.0)
    assert found.engine_shift is None
    assert [version for version in range(5) if recorded.wants_effect_of(version)] == [2]


def test_measures_the_effect_once(recorded):
    recorded.published(1, weights(1.0), "a")
    recorded.take()
    sequences = [
        TrainSequence(token_ids=[1, 2], loss_mask=[False, True], sampling_logprobs=[None, -1.0]),
        TrainSequence(
            token_ids=[1, 2, 3], loss_mask=[False, True, True], sampling_logprobs=[None, -2.0, -3.0]
        ),
    ]
    learner = [np.asarray([-1.5]), np.asarray([-2.5, -3.5])]
    without = [np.asarray([-2.0]), np.asarray([-2.0, -2.0])]
    recorded.effect(sequences, learner, without)
    (found,) = bodies(recorded, AdapterFacts)
    assert found.engine_shift == pytest.approx((1 + 0 + 1) / 3)
    assert found.learner_shift == pytest.approx((0.5 + 0.5 + 1.5) / 3)
    assert (found.version, found.tokens) == (1, 3)
    assert not recorded.wants_effect_of(1)


@pytest.mark.parametrize(("by_probe", "by"), [(True, "probe"), (False, "episodes")])
def test_records_a_comparison(recorded, by_probe, by):
    recorded.agreed(1, {"parity_mean": 0.25, "parity_max": 0.5}, tokens=7, by_probe=by_probe, allowed=1.0)
    assert bodies(recorded, AgreementFacts) == [
        AgreementFacts(agent="o", version=1, attempt=2, mean=0.25, largest=0.5, tokens=7, by=by, allowed=1.0)
    ]


def test_records_no_comparison_of_nothing(recorded):
    recorded.agreed(1, {}, tokens=0, by_probe=False, allowed=1.0)
    assert recorded.take() == []
