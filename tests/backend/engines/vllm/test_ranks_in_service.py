"""A service whose model has one vLLM engine that two ranks divide between them."""

from __future__ import annotations

import shutil

import pytest

from backend.settings.served_models import VllmSettings
from tests.backend.scheduler.hosts import Host
from tinkergym.algorithms import GRPO
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, Sampling
from tinkergym.schema.jobs.rl import RLSpec

pytestmark = [pytest.mark.service, pytest.mark.full("starts Ray for itself, and vLLM with two ranks")]
pytest.importorskip("vllm", reason="vLLM is not installed: bash scripts/install_vllm.sh")


@pytest.fixture
def host(tmp_path):
    host = Host(
        tmp_path,
        engine="vllm",
        placement={"tensor_parallel": 2, "gpus": 0},
        torch_threads=1,
        vllm=VllmSettings(cache_bytes=1 << 26, max_adapter_rank=8),
    )
    yield host
    assert host.stop() == 0
    host.store.close()
    shutil.rmtree(host.config.run_dir)


@pytest.mark.timeout(600)
def test_trains_a_step_with_an_engine_in_two_ranks(host):
    spec = RLSpec(
        environment=EnvironmentRef(id="board/TicTacToeVs-v0"),
        algorithm=GRPO(group_size=4, groups_per_step=2),
        sampling=Sampling(max_turn_tokens=8),
        steps=1,
    )
    job_id = host.tenant.create_job(spec, {}).job_id
    host.until(lambda: host.named("Worker_TP1"))
    host.until(lambda: host.service.job(job_id).state.final)
    job = host.service.job(job_id)
    assert (job.state, job.step) == (JobState.COMPLETED, 1), job.reason
    # Each rank's weights were hashed when they were published.
    assert host.service.version_sha256(job_id, 1) is not None
