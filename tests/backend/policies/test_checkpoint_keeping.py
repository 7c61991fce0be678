from __future__ import annotations

import shutil
import sqlite3

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, MixtralConfig

from backend.learner.checkpoints import Checkpoint
from backend.learner.learner import Learner
from backend.policies.checkpoint_keeping import stored_weights
from backend.store.place import DEFAULT_FILE
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import FullParameters, LoRA


def with_two_checkpoints(lab):
    """Return a job that has finished with its second checkpoint.

    The episodes of its steps are discarded last: the next worker would learn from those that are left, and
    not play the step again.
    """
    job_id = lab.start(steps=3, checkpoint_every=1)
    lab.play_step(job_id)
    lab.play_step(job_id)
    lab.until(job_id, lambda: len(lab.events(job_id, "checkpoint")) == 2)
    lab.until(job_id, lambda: not lab.service.stored_episodes(job_id, 2))
    return job_id


def test_skips_damaged_checkpoint_with_a_warning(lab):
    job_id = with_two_checkpoints(lab)
    newest = lab.folder(lab.events(job_id, "checkpoint")[-1])
    (newest / "optimizer.safetensors").write_bytes(b"rust")
    lab.replace_pool()
    lab.pool.start_job(job_id)
    assert {request.step for request in lab.lease(job_id)} == {2}
    assert [warning.name for warning in lab.events(job_id, "warning")] == ["checkpoint_damaged"]


def test_waits_for_missing_checkpoint_instead_of_an_older_one(lab):
    job_id = with_two_checkpoints(lab)
    newest = lab.folder(lab.events(job_id, "checkpoint")[-1])
    lab.close_pool()
    newest.rename(newest.with_name("away"))
    lab.start_pool()
    lab.pool.start_job(job_id)
    lab.until(job_id, lambda: "blob store unavailable" in lab.service.job(job_id).reason)
    newest.with_name("away").rename(newest)
    assert {request.step for request in lab.lease(job_id)} == {3}
    assert lab.events(job_id, "warning") == []


def test_skips_checkpoint_that_another_worker_wrote_over(lab):
    job_id = with_two_checkpoints(lab)
    older, newer = (lab.folder(event) for event in lab.events(job_id, "checkpoint"))
    shutil.rmtree(newer)
    shutil.copytree(older, newer)
    lab.replace_pool()
    lab.pool.start_job(job_id)
    assert {request.step for request in lab.lease(job_id)} == {2}
    assert "differs from the recorded one" in lab.events(job_id, "warning")[0].message


def test_keeps_only_the_newest_checkpoints(lab):
    job_id = lab.start(steps=4, checkpoint_every=1, keep_checkpoints=2)
    lab.play_on(job_id)
    views = lab.service.checkpoints(job_id)
    assert [view.step for view in views] == [3, 4]
    folder = lab.folder(views[0]).parent
    assert sorted(path.name for path in folder.iterdir()) == ["step-000003.e1", "step-000004.e1"]
    assert all(lab.service.episodes(job_id, step) == [] for step in (1, 2, 3, 4))


def test_keeps_version_that_an_unfinished_job_names(lab):
    job_id = lab.start(steps=4, checkpoint_every=1, keep_checkpoints=1)
    lab.play_step(job_id)
    lab.until(job_id, lambda: len(lab.events(job_id, "checkpoint")) == 1)
    lab.start(steps=1, initial_policy=f"{job_id}@1")
    lab.play_on(job_id)
    assert [view.step for view in lab.service.checkpoints(job_id)] == [1, 4]


def test_keeps_new_checkpoints_after_going_back_behind_damaged_ones(lab, written):
    job_id = lab.start(steps=4, checkpoint_every=1, keep_checkpoints=2)
    for made in (1, 2, 3):
        lab.play_step(job_id)
        lab.until(job_id, lambda made=made: len(lab.events(job_id, "checkpoint")) == made)
    # The oldest goes after the event of the newest.
    lab.until(job_id, lambda: [view.step for view in lab.service.checkpoints(job_id)] == [2, 3])
    lab.close_pool()
    damaged = [lab.folder(view) for view in lab.service.checkpoints(job_id)]
    for path in damaged:
        (path / "optimizer.safetensors").write_bytes(b"rust")
    lab.start_pool()
    lab.pool.start_job(job_id)
    lab.play_step(job_id)
    lab.until(job_id, lambda: len(lab.events(job_id, "checkpoint")) == 4)
    # Those that are damaged go after the event of the new one.
    lab.until(job_id, lambda: [view.step for view in lab.service.checkpoints(job_id)] == [1])
    lab.close_pool()
    (view,) = lab.service.checkpoints(job_id)
    assert (lab.folder(view) / "manifest.json").is_file()
    assert [(path / "optimizer.safetensors").read_bytes() for path in damaged] == [b"rust", b"rust"]
    lab.start_pool()
    # Who asks for the policy while no worker has the job gets the good one.
    assert written.answer(job_id, "say something") is not None
    lab.pool.start_job(job_id)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    assert [view.step for view in lab.service.checkpoints(job_id)] == [3, 4]


def test_fails_job_with_reason_when_its_checkpoint_cannot_be_written(make_lab):
    lab = make_lab()
    folder = lab.config.jobs_dir
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_text("in the way")
    job_id = lab.start(steps=1)
    lab.play_on(job_id)
    assert lab.events(job_id, "state")[-1].state is JobState.FAILED


def test_reads_earlier_checkpoints_where_the_data_folder_is_now(make_lab):
    lab = make_lab()
    job_id = with_two_checkpoints(lab)
    lab.close_pool()
    for view in lab.service.checkpoints(job_id):
        lab.folder(view).rename(lab.folder(view).with_suffix(""))
    with sqlite3.connect(lab.config.data_dir / DEFAULT_FILE) as database:
        database.execute("update checkpoints set view = json_set(view, '$.key', '', '$.path', '/elsewhere')")
    database.close()
    lab.start_pool()
    lab.pool.start_job(job_id)
    assert {request.step for request in lab.lease(job_id)} == {3}
    assert lab.events(job_id, "warning") == []


SIZES = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
FAMILIES = {
    "tied": lambda: Gemma2Config(**SIZES),
    "experts": lambda: MixtralConfig(**SIZES, num_local_experts=2),
}


@pytest.mark.parametrize("adapter", [FullParameters(), LoRA(rank=2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_stores_weights_with_names_and_bits_of_the_policy(tmp_path, family, dtype, adapter):
    AutoModelForCausalLM.from_config(FAMILIES[family]()).save_pretrained(tmp_path / "model")
    learner = Learner(tmp_path / "model", dtype=dtype)
    learner.create_policy("p", adapter, seed=0)
    learner.save("p", tmp_path / "step-1", step=1, policy_version=1)
    found, expected = stored_weights(Checkpoint.open(tmp_path / "step-1")), learner.weights("p")
    assert found.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in expected.tensors.items())
