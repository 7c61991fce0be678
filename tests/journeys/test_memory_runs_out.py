"""A job whose pool worker suddenly gets no more memory resumes in another one, with the same bits."""

import resource
import sys

import psutil
import pytest

import tinkergym as tg
from tinkergym.schema.events import JobState, StateEvent, StepEvent

pytestmark = [
    pytest.mark.service,
    pytest.mark.full("ends a worker of Ray"),
    pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not limit a process's memory"),
]

SPARE_BYTES = 8 * 2**20


def limit_pool_workers():
    """Let those below this process have hardly more memory than now; return their number."""
    limited = 0
    for process in psutil.Process().children(recursive=True):
        words = process.cmdline()
        if words and words[0].startswith("ray::PoolProcess"):
            most = process.memory_info().vms + SPARE_BYTES
            process.rlimit(psutil.RLIMIT_AS, (most, resource.RLIM_INFINITY))
            limited += 1
    return limited


def train(client):
    return client.train(
        "board/TicTacToeVs-v0",
        steps=4,
        seed=7,
        checkpoint_every=1,
        deterministic=True,
        algorithm=tg.GRPO(group_size=8, groups_per_step=4),
        sampling=tg.Sampling(max_turn_tokens=8),
    )


def test_resumes_in_another_worker_with_same_bits_without_memory(client):
    undisturbed = train(client)
    assert undisturbed.wait().state is JobState.COMPLETED
    job, limited, states = train(client), 0, []
    for event in job.events():
        if isinstance(event.body, StateEvent):
            states.append(event.body)
        if not limited and isinstance(event.body, StepEvent):
            limited = limit_pool_workers()
            assert limited  # other tests may have left pools of their own
    assert [states[-1].state, states[-1].attempt] == [JobState.COMPLETED, 2]
    assert job.checkpoints()[-1].sha256 == undisturbed.checkpoints()[-1].sha256
