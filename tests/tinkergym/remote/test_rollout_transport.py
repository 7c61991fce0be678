import json

import pytest

from tinkergym.remote.rollout_transport import HttpRolloutTransport, Routes
from tinkergym.schema.episodes import LeaseRequest, SubmitRequest
from tinkergym.testing import byte_bundle


class Wire:
    """Stands for a connection: answers by path, and keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def call(self, method, path, *, params=None, body=None, idempotent=True, timeout_seconds=None):
        self.asked.append((method, path, dict(params or {}), idempotent, timeout_seconds))
        if path.endswith("lease"):
            return b'{"episodes": [], "job_state": "running"}'
        if path.endswith("submit"):
            return json.dumps({"verdicts": ["accepted"] * len(json.loads(body)["results"])}).encode()
        return byte_bundle().model_dump_json().encode()


@pytest.fixture
def wire():
    return Wire()


def test_asks_for_one_job_through_the_gateway(wire):
    transport = HttpRolloutTransport(wire, Routes.of_gateway("job-1"))
    transport.lease(LeaseRequest(worker_id="w", max_episodes=1, wait_seconds=0))
    transport.submit(SubmitRequest(worker_id="w", results=[]))
    assert [path for _, path, *_ in wire.asked] == [
        "/v1/jobs/job-1/episodes/lease",
        "/v1/jobs/job-1/episodes/submit",
    ]


def test_passes_job_as_parameter_of_leases_and_results_to_pool(wire):
    transport = HttpRolloutTransport(wire, Routes.of_pool("job-1", "w"))
    transport.lease(LeaseRequest(worker_id="w", max_episodes=1, wait_seconds=0))
    assert wire.asked[0][1:3] == ("/episodes/lease", {"job_id": "job-1"})


def test_asks_once_for_lease_and_says_a_short_farewell(wire):
    transport = HttpRolloutTransport(wire, Routes.of_gateway("job-1"))
    transport.lease(LeaseRequest(worker_id="w", max_episodes=1, wait_seconds=10))
    transport.lease(LeaseRequest(worker_id="w", max_episodes=0, wait_seconds=10, leaving=True))
    (_, _, _, first, patient), (_, _, _, second, hasty) = wire.asked
    assert not first and not second
    assert hasty < 10 < patient


def test_reads_renderer_whole(wire):
    transport = HttpRolloutTransport(wire, Routes.of_gateway("job-1"))
    assert transport.renderer("bytes") == byte_bundle()
    assert wire.asked[0][:3] == ("GET", "/v1/renderer", {"model": "bytes"})
