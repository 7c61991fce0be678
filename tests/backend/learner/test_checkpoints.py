import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import backend
from backend.compute.weights import weights_sha256
from backend.errors import BlobsUnavailableError
from backend.learner.checkpoints import Checkpoint
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from tests.backend.store.blob_places import break_disk_at, closed
from tinkergym.errors import CheckpointCorruptError, ConflictError, StorageFullError
from tinkergym.schema.jobs.parts import FullParameters, LoRA

NANO = Path(backend.__file__).parent / "models" / "nano"


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


@KINDS
def test_trains_two_steps_twice_over_checkpoint_bit_equal_to_four(model_dir, batch, adapter, tmp_path):
    learner = Learner(model_dir)
    learner.create_policy("p", adapter, seed=1)
    train(learner, batch, steps=2)
    learner.save("p", tmp_path / "step-2", step=2, policy_version=2, extra={"cursor": 5})
    train(learner, batch, steps=2)
    straight = learner.save("p", tmp_path / "step-4", step=4, policy_version=4)

    resumed = Learner(model_dir)
    manifest = resumed.load("p", tmp_path / "step-2", adapter)
    assert (manifest.step, manifest.policy_version, manifest.extra) == (2, 2, {"cursor": 5})
    assert manifest.weights_sha256 == weights_sha256(resumed.weights("p"))
    train(resumed, batch, steps=2)
    again = resumed.save("p", tmp_path / "again", step=4, policy_version=4)
    assert weights_sha256(resumed.weights("p")) == weights_sha256(learner.weights("p"))
    assert again.weights_sha256 == straight.weights_sha256
    assert again.files["optimizer.safetensors"] == straight.files["optimizer.safetensors"]


def test_learns_full_policy_bit_equal_wherever_files_hold_its_weights(tmp_path):
    # Eight bytes more in the header move every tensor to another address once the file is mapped into memory.
    # Not the tiny model, nor short sequences: small matrix products are computed alike everywhere.
    moved = shutil.copytree(NANO, tmp_path / "moved")
    content = (moved / "model.safetensors").read_bytes()
    header = int.from_bytes(content[:8], "little")
    (moved / "model.safetensors").write_bytes(
        (header + 8).to_bytes(8, "little") + content[8 : 8 + header] + b" " * 8 + content[8 + header :]
    )
    rng = np.random.default_rng(0)
    sequences = [
        TrainSequence(
            token_ids=rng.integers(5, 500, length).tolist(),
            loss_mask=[False] * 9 + [True] * (length - 9),
            sampling_logprobs=[None] * 9 + [-2.0] * (length - 9),
            advantage=float(rng.normal()),
        )
        for length in rng.integers(30, 80, 8)
    ]
    learned = []
    for directory in (NANO, moved):
        learner = Learner(directory)
        learner.create_policy("p", FullParameters(), seed=1)
        train(learner, sequences, steps=2)
        learned.append(weights_sha256(learner.weights("p")))
    assert learned[0] == learned[1]


@KINDS
def test_saves_and_loads_an_untrained_policy(model_dir, batch, adapter, tmp_path):
    learner = Learner(model_dir)
    learner.create_policy("p", adapter, seed=1)
    learner.save("p", tmp_path / "step-0", step=0, policy_version=0)
    learner.create_policy("other", adapter, seed=1)
    learner.drop("p")
    learner.load("p", tmp_path / "step-0", adapter)
    train(learner, batch, steps=1)
    learner.forward_backward("other", batch, policy_loss())
    learner.optim_step("other", learning_rate=1e-2, weight_decay=0.01)
    assert weights_sha256(learner.weights("p")) == weights_sha256(learner.weights("other"))


def test_keeps_logprobs_equal_over_a_round_trip(learner, saved, batch):
    learner.load("again", saved, ADAPTERS[0])
    for left, right in zip(learner.logprobs("p", batch), learner.logprobs("again", batch), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    "name", ["adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors"]
)
@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_names_damaged_file_and_loads_nothing(learner, saved, name, damage):
    path = saved / name
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-1])
    else:
        content[-1] ^= 1
        path.write_bytes(content)
    with pytest.raises(CheckpointCorruptError):
        learner.load("again", saved, ADAPTERS[0])
    assert learner.policy_ids == ["p"]


@pytest.mark.parametrize("name", ["manifest.json", "adapter_model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("lost", [Path.unlink, break_disk_at])
def test_takes_what_cannot_be_read_for_unavailable_not_damaged(learner, saved, name, lost):
    lost(saved / name)
    with pytest.raises(BlobsUnavailableError):
        learner.load("again", saved, ADAPTERS[0])
    assert learner.policy_ids == ["p"]


def test_takes_closed_folder_for_unavailable_not_damaged(learner, saved):
    with closed(saved), pytest.raises(BlobsUnavailableError):
        learner.load("again", saved, ADAPTERS[0])


@pytest.mark.parametrize("read", [Checkpoint.tensors, Checkpoint.tensors_on_disk, Checkpoint.dtypes])
@pytest.mark.parametrize("lost", [Path.unlink, break_disk_at])
def test_says_that_tensors_went_away_after_their_check(saved, read, lost):
    checkpoint = Checkpoint.open(saved)
    lost(saved / "optimizer.safetensors")
    with pytest.raises(BlobsUnavailableError):
        read(checkpoint, "optimizer.safetensors")


@pytest.mark.parametrize("content", [b"{", b'{"step": 2}'])
def test_rejects_checkpoint_without_a_readable_manifest(learner, saved, content):
    (saved / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointCorruptError):
        learner.load("again", saved, ADAPTERS[0])


def test_keeps_manifest_from_pointing_outside_the_checkpoint(learner, saved):
    manifest = json.loads((saved / "manifest.json").read_bytes())
    manifest["files"]["../secret"] = {"bytes": 1, "sha256": ""}
    (saved / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointCorruptError):
        learner.load("again", saved, ADAPTERS[0])


@KINDS
def test_names_full_disk_and_leaves_nothing_behind(learner, batch, adapter, tmp_path, monkeypatch):
    learner.create_policy("p", adapter, seed=1)
    learner.save("p", tmp_path / "jobs" / "step-1", step=1, policy_version=1)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFullError):
        learner.save("p", tmp_path / "jobs" / "step-2", step=2, policy_version=2)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    monkeypatch.undo()
    assert learner.load("again", tmp_path / "jobs" / "step-1", adapter).step == 1


def test_loses_no_pending_gradient_in_a_checkpoint(learner, saved, batch):
    learner.forward_backward("p", batch, policy_loss())
    with pytest.raises(ConflictError, check=lambda error: error.code == "gradient_pending"):
        learner.save("p", saved.with_name("step-3"), step=3, policy_version=3)
