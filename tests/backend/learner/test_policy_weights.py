import pytest

from backend.compute.weights import FullWeights, weights_sha256
from backend.learner.learner import Learner
from backend.learner.token_loss import policy_loss
from tests.backend.learner.tiny import trained
from tinkergym.errors import (
    ConflictError,
    NotFoundError,
)
from tinkergym.schema.jobs.parts import FullParameters, LoRA

ADAPTERS = [LoRA(rank=4, alpha=12.0), FullParameters()]


def test_trains_policies_in_turns_bit_equal_to_training_alone(model_dir, make_batch):
    settings = {
        "a.1": (LoRA(rank=2), make_batch(seed=1)),
        "b": (LoRA(rank=5, alpha=3.0), make_batch(seed=2)),
        "c": (FullParameters(), make_batch(seed=3)),
    }
    alone = {}
    for name, (adapter, data) in settings.items():
        learner = Learner(model_dir)
        trained(learner, adapter, data, policy_id=name, steps=2)
        alone[name] = weights_sha256(learner.weights(name))

    shared = Learner(model_dir)
    for name, (adapter, _) in settings.items():
        shared.create_policy(name, adapter, seed=3)
    for _ in range(2):
        for name, (_, data) in settings.items():
            shared.forward_backward(name, data, policy_loss())
        for name in reversed(settings):
            shared.optim_step(name, learning_rate=2e-2)
    shared.create_policy("passing", LoRA(rank=3), seed=9)
    shared.drop("passing")
    assert {name: weights_sha256(shared.weights(name)) for name in settings} == alone


def _step(learner, batch, **kwargs):
    learner.forward_backward("p", batch, policy_loss())
    return learner.optim_step("p", **kwargs)


def test_knows_a_policy_by_its_id_only_while_it_exists(learner, batch):
    learner.create_policy("p", ADAPTERS[0], seed=1)
    with pytest.raises(ConflictError, check=lambda error: error.code == "exists"):
        learner.create_policy("p", ADAPTERS[0], seed=1)
    learner.drop("p")
    with pytest.raises(NotFoundError):
        learner.forward_backward("p", batch, policy_loss())
    learner.create_policy("p", ADAPTERS[0], seed=1)
    assert learner.policy_ids == ["p"]


def test_returns_copies_of_weights(learner, batch):
    trained(learner, FullParameters(), batch)
    weights = learner.weights("p")
    assert isinstance(weights, FullWeights)
    digest = weights_sha256(weights)
    _step(learner, batch, learning_rate=1e-2)
    assert weights_sha256(weights) == digest
