"""A deterministic job whose blobs cannot be reached for a while, in the middle of its steps."""

import contextlib
from pathlib import Path

import pytest

from tests.journeys.disturbed_job import train, weights
from tinkergym.schema.events import StateEvent, StepEvent

pytestmark = [pytest.mark.service, pytest.mark.full("trains a job twice")]

UNUSABLE = "/sys/kernel"
"""A folder in which not even root can make one: what is kept below a link to it is away."""


def follow(job, reached):
    """Read a job's events until one of them is what is waited for."""
    return next(event.body for event in job.events() if reached(event.body))


@contextlib.contextmanager
def away(folder):
    """Let a folder be one whose disk is not there."""
    aside = folder.with_name(f"{folder.name}.away")
    folder.rename(aside)
    folder.symlink_to(UNUSABLE)
    yield
    folder.unlink()
    aside.rename(folder)


def test_waits_for_blobs_and_ends_with_same_bits(client):
    undisturbed = weights(train(client))
    job = train(client)
    follow(job, lambda body: isinstance(body, StepEvent) and body.step == 2)
    with away(Path(job.checkpoints()[0].path).parents[1]):
        follow(job, lambda body: isinstance(body, StateEvent) and "blob store" in body.reason)
        waiting = job.view()  # The gateway answers.
        assert (waiting.state.final, waiting.attempt) == (False, 1)
    assert weights(job) == undisturbed
    assert [event.body.step for event in job.events() if isinstance(event.body, StepEvent)] == [1, 2, 3, 4, 5]
