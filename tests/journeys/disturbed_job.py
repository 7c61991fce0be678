"""A deterministic job that journeys disturb, its weights, and the workers that run it."""

import contextlib

import psutil

import tinkergym as tg
from tinkergym.schema.events import JobState


def train(client):
    return client.train(
        "board/TicTacToeVs-v0",
        steps=5,
        seed=7,
        checkpoint_every=1,
        deterministic=True,
        algorithm=tg.GRPO(group_size=4, groups_per_step=4),
        sampling=tg.Sampling(max_turn_tokens=8),
    )


def weights(job):
    assert job.wait().state is JobState.COMPLETED
    return job.checkpoints()[-1].sha256


def pool_workers():
    """Return those below this process, with those of other tests: Ray names a process after its actor."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if words and words[0].startswith("ray::PoolProcess"):
                found.append(process)
    assert found
    return found
