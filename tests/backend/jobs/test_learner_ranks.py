"""Jobs on a pool whose learner is two real processes, against the same jobs on a pool with one."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from backend.config import ServiceConfig, load_config
from backend.errors import ConfigError, RankLostError
from backend.worker_url import unix_url
from backend.workers.pool_worker import PoolWorker
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import FullParameters, LoRA

ROWS = [{"prompt": f"{a} and {b}?", "completion": f"{a + b}, I think"} for a in range(4) for b in range(4)]
PAIRS = [{"prompt": f"{a}?", "chosen": f"it is {a}", "rejected": f"no, {a + 1}"} for a in range(8)]


def weights(lab, job_id):
    """The tensors of a job's last checkpoint."""
    folder = lab.folder(lab.service.checkpoints(job_id)[-1])
    (file,) = [path for path in folder.glob("*model.safetensors") if "optim" not in path.name]
    return load_file(file)


@pytest.mark.service
@pytest.mark.full("jobs of each kind on two ranks")
def test_trains_on_two_ranks_as_one_and_survives_killed_rank(make_lab, written_in, monkeypatch):
    one, two = make_lab("one"), make_lab("two", placement={"learner": {"ranks": 2, "divided": True}})
    jobs = [
        ("sft", ROWS, LoRA(rank=4)),
        ("sft", ROWS, FullParameters()),
        ("preference", PAIRS, LoRA(rank=4)),
    ]
    smooth = {}
    for kind, rows, adapter in jobs:
        settings = {"steps": 4, "batch_size": 5, "adapter": adapter, "learning_rate": 1e-3}
        alone, shared = (written_in(lab).run(kind, rows, **settings) for lab in (one, two))
        expected, found = weights(one, alone), weights(two, shared)
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            # AdamW turns a gradient that is nothing but rounding into a whole step, so a few may differ.
            assert (found[name] - tensor).abs().mean() < 1e-5, name
        losses = [[step.loss for step in lab.events(j, "step")] for lab, j in ((one, alone), (two, shared))]
        assert losses[1] == pytest.approx(losses[0], abs=1e-4)
        smooth[kind, adapter.kind] = two.weights(shared, 4)

    played = []
    for lab in (one, two):
        played.append(lab.start(steps=2, deterministic=True))
        lab.play_on(played[-1])
        assert lab.state(played[-1]) is JobState.COMPLETED, lab.events(played[-1], "state")[-1]
    expected, found = weights(one, played[0]), weights(two, played[1])
    assert max(float((found[name] - tensor).abs().mean()) for name, tensor in expected.items()) < 1e-5

    settings = {"steps": 4, "batch_size": 5, "adapter": LoRA(rank=4), "learning_rate": 1e-3}
    broken = written_in(two).start_later("sft", ROWS, **{**settings, "checkpoint_every": 1})
    group = two.pool.own.learner.current()
    old, step, steps = group.process_ids, group.optim_step, []

    def killed_in_the_third(*args, **kwargs):
        steps.append(1)
        if len(steps) == 3:
            os.kill(old[1], signal.SIGKILL)
        return step(*args, **kwargs)

    monkeypatch.setattr(group, "optim_step", killed_in_the_third)
    two.pool.start_job(broken)
    two.until_state(broken, JobState.QUEUED)
    (warning,) = [event for event in two.events(broken, "warning") if event.name == "rank_lost"]
    assert "rank 1 ended with code -9" in warning.message
    assert "resumes from the last checkpoint" in two.events(broken, "state")[-1].reason

    def taken():
        two.pool.start_job(broken)  # as the scheduler does at each look
        return two.state(broken) is not JobState.QUEUED

    two.until(broken, taken)
    two.until(broken, lambda: two.state(broken).final)
    assert two.events(broken, "state")[-2].reason == "resumed after step 2"
    assert set(two.pool.own.learner.current().process_ids).isdisjoint(old)
    assert two.state(broken) is JobState.COMPLETED
    assert two.weights(broken, 4) == smooth["sft", "lora"]


def test_ends_job_that_kills_its_ranks_with_their_error(make_lab, written_in, monkeypatch):
    lab = make_lab()

    def dies(*_, **__):
        raise RankLostError("the data-parallel group of 2 ranks is broken: rank 1 ended with code -9")

    monkeypatch.setattr(lab.pool.own.learner.current(), "forward_backward", dies)
    job_id = written_in(lab).start_later("sft", ROWS)

    def ended():
        lab.pool.start_job(job_id)
        return lab.state(job_id).final

    lab.until(job_id, ended)
    assert lab.state(job_id) is JobState.FAILED
    assert lab.service.job(job_id).attempt == 3
    assert lab.events(job_id, "state")[-1].error.type == "RankLostError"


def test_rejects_ranks_without_devices_of_their_own(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, check=lambda error: error.field == "placement.learner.ranks"):
        load_config(None, ["placement.learner.ranks=2", "placement.gpus=1"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    threads = torch.get_num_threads()  # A worker sets it for its process.
    config = ServiceConfig(
        data_dir=tmp_path, torch_threads=threads, placement={"learner": {"ranks": 2}, "gpus": 2}
    )
    with pytest.raises(ConfigError, check=lambda error: error.field == "placement.gpus"):
        PoolWorker(config, pool_id="p", model="nano", url=unix_url(tmp_path / "s"), token="t")
