from __future__ import annotations

import queue
import socket
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from backend.worker_url import unix_url
from backend.workers.endpoint import PoolEndpoint
from tinkergym.errors import (
    AuthenticationError,
    InternalServiceError,
    InvalidRequestError,
    NotFoundError,
    TooManyRequestsError,
)
from tinkergym.remote.transport import Connection
from tinkergym.schema.episodes import LeaseReply, LeaseRequest
from tinkergym.schema.operation import PoolProof
from tinkergym.schema.sampling import Completion, SampleBatch, SampleRequest

TOKEN = "secret"


class Service:
    def sample(self, requests, deliver, *, together=False):
        if requests[0].policy == "slow":
            self.receivers.put(deliver)
        else:
            raise NotFoundError("no such policy")

    def __init__(self) -> None:
        self.receivers = queue.Queue()
        self.episodes_come = threading.Event()
        self.polls = threading.Semaphore(0)

    def prove(self):
        return PoolProof(sampled=True)

    def lease(self, request, job_id):
        self.polls.release()
        assert request.wait_seconds == 0 or self.episodes_come.wait(120.0)
        return LeaseReply(episodes=[], lost=[job_id, *request.renew], job_state="running")

    def vanished(self, worker_id, job_id):
        raise NotFoundError("gone", field=f"{worker_id} of {job_id}")

    def submit(self, request, job_id):
        raise RuntimeError("surprise")

    def renderer(self, model):
        raise NotFoundError("unknown", field=model)


@pytest.fixture
def socket_path(tmp_path_factory):
    return tmp_path_factory.mktemp("p") / "s"


@pytest.fixture
def connect(socket_path):
    endpoint = PoolEndpoint(Service(), unix_url(socket_path), TOKEN)
    connections = []

    def open_connection(token: str = TOKEN) -> Connection:
        connections.append(Connection(unix_url(socket_path), token=token))
        return connections[-1]

    yield open_connection
    for connection in connections:
        connection.close()
    endpoint.close()


def test_tells_the_service_of_a_worker_that_vanished(connect):
    body = LeaseRequest(worker_id="w", max_episodes=1).model_dump_json().encode()
    with pytest.raises(NotFoundError, check=lambda error: error.field == "w of job-1"):
        connect().call("POST", "/episodes/vanished", params={"job_id": "job-1"}, body=body)


def test_passes_call_to_the_service_with_its_job(connect):
    body = LeaseRequest(worker_id="w", max_episodes=1, wait_seconds=0, renew=["a"]).model_dump_json().encode()
    answer = connect().call("POST", "/episodes/lease", params={"job_id": "job-1"}, body=body)
    assert LeaseReply.model_validate_json(answer).lost == ["job-1", "a"]


@pytest.mark.parametrize("token", ["", "wrong", "secretive"])
def test_lets_nobody_in_without_the_token(connect, token):
    with pytest.raises(AuthenticationError):
        connect(token).call("POST", "/prove")


def test_opens_socket_to_its_owner_only(connect, socket_path):
    assert stat.S_IMODE(socket_path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "body", [b"", b"not json", b'{"worker_id": "w"}', b'{"worker_id": "w", "max_episodes": 1, "more": 1}']
)
def test_rejects_bad_bodies_by_name(connect, body):
    with pytest.raises(InvalidRequestError):
        connect().call("POST", "/episodes/lease", body=body)


def test_keeps_type_of_the_services_errors(connect):
    with pytest.raises(NotFoundError, check=lambda error: error.field == "nano"):
        connect().call("GET", "/renderer", params={"model": "nano"})


def test_survives_a_surprise_as_an_error(connect):
    connection = connect()
    with pytest.raises(InternalServiceError):
        connection.call("POST", "/episodes/submit", body=b'{"worker_id": "w", "results": []}')
    assert connection.call("POST", "/prove") == b'{"sampled":true}'


def test_takes_over_socket_left_by_a_killed_pool(connect, socket_path):
    again = PoolEndpoint(Service(), unix_url(socket_path), TOKEN)
    assert connect().call("POST", "/prove") == b'{"sampled":true}'
    again.close()


def test_does_not_hold_up_others_by_workers_awaiting_episodes(socket_path):
    service = Service()
    endpoint = PoolEndpoint(service, unix_url(socket_path), TOKEN, long_polls=1)
    body = LeaseRequest(worker_id="w", max_episodes=1).model_dump_json().encode()
    with Connection(unix_url(socket_path), token=TOKEN) as connection, ThreadPoolExecutor() as threads:
        polls = [threads.submit(connection.call, "POST", "/episodes/lease", body=body) for _ in range(3)]
        assert service.polls.acquire(timeout=60.0)
        with pytest.raises(NotFoundError, check=lambda error: error.field == "nano"):
            connection.call("GET", "/renderer", params={"model": "nano"})
        for only in ({"max_episodes": 0, "wait_seconds": 0}, {"max_episodes": 1, "wait_seconds": 0}):
            renewal = LeaseRequest(worker_id="busy", renew=["a"], **only).model_dump_json().encode()
            answer = connection.call("POST", "/episodes/lease", body=renewal)
            assert LeaseReply.model_validate_json(answer).lost == ["", "a"]
            assert not any(poll.done() for poll in polls)
        service.episodes_come.set()
        for poll in polls:
            poll.result()
    endpoint.close()


def test_tells_engine_when_a_caller_hangs_up(socket_path):
    service = Service()
    endpoint = PoolEndpoint(service, unix_url(socket_path), TOKEN)
    body = b'{"requests": [{"request_id": "r", "policy": "slow", "prompt_ids": [1], "max_tokens": 9}]}'
    head = [
        "POST /sample HTTP/1.1",
        "Host: pool",
        f"Authorization: Bearer {TOKEN}",
        f"Content-Length: {len(body)}",
    ]
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(socket_path))
        caller.sendall("\r\n".join([*head, "", ""]).encode() + body)
        receiver = service.receivers.get(timeout=60.0)
        assert not receiver.gone
    deadline = time.monotonic() + 120.0
    while not receiver.gone:
        assert time.monotonic() < deadline
    endpoint.close()


def batch_of(owner, count):
    asked = [
        SampleRequest(request_id=f"r{at}", policy="slow", prompt_ids=[1], max_tokens=9).owned_by(owner)
        for at in range(count)
    ]
    return SampleBatch(requests=asked).model_dump_json().encode()


def answer(receiver, request_id):
    tokens = {"token_ids": [5], "sampling_logprobs": [0.0], "finish_reason": "stop", "policy_version": 0}
    receiver([Completion(request_id=request_id, **tokens)])


def test_refuses_samples_beyond_the_tenants_limit(socket_path):
    service = Service()
    endpoint = PoolEndpoint(service, unix_url(socket_path), TOKEN, samples_in_flight=3)
    with Connection(unix_url(socket_path), token=TOKEN) as connection, ThreadPoolExecutor() as threads:

        def sample(owner, count):
            return threads.submit(connection.call, "POST", "/sample", body=batch_of(owner, count))

        with connection.stream("POST", "/sample", body=batch_of("ada", 3)) as chunks:
            first = service.receivers.get(timeout=60.0)
            answer(first, "r0")
            assert b"r0" in next(chunks)
            # One is answered: one more may come, and no second one.
            with pytest.raises(TooManyRequestsError):
                sample("ada", 2).result(60.0)
            others = [sample("ada", 1), sample("bob", 3), sample("", 9)]
            for _ in others:
                receiver = service.receivers.get(timeout=60.0)
                for at in range(9):
                    answer(receiver, f"r{at}")
            assert all(b"r0" in other.result(60.0) for other in others)
            with pytest.raises(NotFoundError):
                connection.call("POST", "/sample", body=batch_of("ada", 1).replace(b"slow", b"lost"))
        # The caller hung up: what it left unanswered does not count.
        while not first.gone:
            connection.call("POST", "/prove")
        last = sample("ada", 3)
        receiver = service.receivers.get(timeout=60.0)
        for at in range(3):
            answer(receiver, f"r{at}")
        assert last.result(60.0).count(b"\n") == 3
    endpoint.close()
