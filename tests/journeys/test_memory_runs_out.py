"""A job whose pool worker suddenly gets no more memory resumes in another one, with the same bits."""

import sys

import pytest

from tests.journeys.disturbed_job import pool_workers, train, weights
from tests.limited_memory import limit_memory
from tinkergym.schema.events import JobState, StateEvent, StepEvent

pytestmark = [
    pytest.mark.service,
    pytest.mark.full("ends a worker of Ray"),
    pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not limit a process's memory"),
]

SPARE_BYTES = 8 * 2**20


def test_resumes_in_another_worker_with_same_bits_without_memory(client):
    undisturbed = weights(train(client))
    job, limited, states = train(client), False, []
    for event in job.events():
        if isinstance(event.body, StateEvent):
            states.append(event.body)
        if not limited and isinstance(event.body, StepEvent):
            for pool in pool_workers():
                limit_memory(pool, SPARE_BYTES)
            limited = True
    assert [states[-1].state, states[-1].attempt] == [JobState.COMPLETED, 2]
    assert weights(job) == undisturbed
