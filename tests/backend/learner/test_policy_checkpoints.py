import json

import pytest

from backend.compute.weights import weights_sha256
from backend.learner.learner import Learner
from backend.learner.token_loss import policy_loss
from tinkergym.errors import CheckpointCorruptError, ConflictError, NotFoundError
from tinkergym.schema.jobs.parts import FullParameters, LoRA

ADAPTERS = [LoRA(rank=4), FullParameters()]


KINDS = pytest.mark.parametrize("adapter", ADAPTERS, ids=["lora", "full"])


def train(learner, batch, *, steps):
    for _ in range(steps):
        learner.forward_backward("p", batch, policy_loss())
        learner.optim_step("p", learning_rate=1e-2, weight_decay=0.01)


@pytest.fixture
def saved(learner, batch, tmp_path):
    """A LoRA policy after two steps, and its checkpoint."""
    learner.create_policy("p", ADAPTERS[0], seed=1)
    train(learner, batch, steps=2)
    learner.save("p", tmp_path / "step-2", step=2, policy_version=2)
    return tmp_path / "step-2"


def test_gives_same_files_by_the_same_policy(learner, saved):
    again = learner.save("p", saved.with_name("again"), step=2, policy_version=2)
    assert json.loads((saved / "manifest.json").read_bytes()) == again.model_dump(mode="json")


@KINDS
@pytest.mark.parametrize("training", ["the same", "another"])
def test_rejects_weights_that_are_read_differently_than_saved(learner, batch, adapter, training, tmp_path):
    """By a library of another version, say: each file is what was written."""
    learner.create_policy("p", adapter, seed=1)
    train(learner, batch, steps=1)
    learner.save("p", tmp_path / "step-1", step=1, policy_version=1)
    learner.drop("p")
    manifest = json.loads((tmp_path / "step-1" / "manifest.json").read_bytes())
    manifest["weights_sha256"] = "0" * 64
    (tmp_path / "step-1" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointCorruptError):
        learner.load("p", tmp_path / "step-1", adapter, fresh_optimizer=training == "another")
    assert learner.policy_ids == []


@pytest.mark.parametrize("adapter", [LoRA(rank=5), LoRA(rank=4, alpha=1.0), FullParameters()])
def test_rejects_checkpoint_of_another_adapter(learner, saved, adapter):
    with pytest.raises(ConflictError, check=lambda error: error.code == "other_adapter"):
        learner.load("again", saved, adapter)


def test_rejects_checkpoint_of_another_base_model(learner, saved, batch, tmp_path):
    learner.create_policy("full", FullParameters(), seed=1)
    learner.forward_backward("full", batch, policy_loss())
    learner.optim_step("full", learning_rate=1e-3)
    learner.save("full", tmp_path / "elsewhere" / "model", step=1, policy_version=1)
    with pytest.raises(ConflictError, check=lambda error: error.code == "other_model"):
        Learner(tmp_path / "elsewhere" / "model").load("p", saved, ADAPTERS[0])


def test_takes_anothers_place_and_name_by_a_policy(learner, saved, batch):
    before = weights_sha256(learner.weights("p"))
    train(learner, batch, steps=1)
    learner.load("aside", saved, ADAPTERS[0])
    learner.replace("p", "aside")
    assert learner.policy_ids == ["p"]
    assert weights_sha256(learner.weights("p")) == before
    with pytest.raises(NotFoundError):
        learner.replace("p", "nobody")
    assert weights_sha256(learner.weights("p")) == before
