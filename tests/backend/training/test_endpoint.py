from __future__ import annotations

import stat

import pytest

from backend.training.endpoint import PoolEndpoint
from tinkergym.errors import (
    AuthenticationError,
    InternalServiceError,
    InvalidRequestError,
    NotFoundError,
)
from tinkergym.remote.transport import Connection
from tinkergym.wire import LeaseReply, LeaseRequest

TOKEN = "secret"


class Service:
    def sample(self, requests, deliver):
        raise NotFoundError("no such policy")

    def lease(self, request, job_id):
        return LeaseReply(episodes=[], lost=[job_id, *request.renew], job_state="running")

    def submit(self, request, job_id):
        raise RuntimeError("surprise")

    def renderer(self, model):
        raise NotFoundError(f"no {model}")


@pytest.fixture
def socket_path(tmp_path_factory):
    return tmp_path_factory.mktemp("p") / "s"


@pytest.fixture
def connect(socket_path):
    endpoint = PoolEndpoint(Service(), socket_path, TOKEN)
    connections = []

    def open_connection(token: str = TOKEN) -> Connection:
        connections.append(Connection(f"unix://{socket_path}", token=token))
        return connections[-1]

    yield open_connection
    for connection in connections:
        connection.close()
    endpoint.close()


def test_a_call_reaches_the_service_with_its_job(connect):
    body = LeaseRequest(worker_id="w", max_episodes=1, renew=["a"]).model_dump_json().encode()
    answer = connect().call("POST", "/episodes/lease", params={"job_id": "job-1"}, body=body)
    assert LeaseReply.model_validate_json(answer).lost == ["job-1", "a"]


@pytest.mark.parametrize("token", ["", "wrong", "secretive"])
def test_nobody_comes_in_without_the_token(connect, token):
    with pytest.raises(AuthenticationError):
        connect(token).call("GET", "/health")


def test_only_its_owner_can_open_the_socket(connect, socket_path):
    assert stat.S_IMODE(socket_path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "body", [b"", b"not json", b'{"worker_id": "w"}', b'{"worker_id": "w", "max_episodes": 1, "more": 1}']
)
def test_bad_bodies_are_refused_and_named(connect, body):
    with pytest.raises(InvalidRequestError):
        connect().call("POST", "/episodes/lease", body=body)


def test_errors_of_the_service_keep_their_type(connect):
    with pytest.raises(NotFoundError, match="no nano"):
        connect().call("GET", "/renderer", params={"model": "nano"})


def test_a_surprise_is_an_error_and_not_the_end(connect):
    connection = connect()
    with pytest.raises(InternalServiceError, match="surprise"):
        connection.call("POST", "/episodes/submit", body=b'{"worker_id": "w", "results": []}')
    assert connection.call("GET", "/health") == b'{"status":"ok"}'


def test_a_socket_left_by_a_killed_pool_is_taken_over(connect, socket_path):
    again = PoolEndpoint(Service(), socket_path, TOKEN)
    assert connect().call("GET", "/health") == b'{"status":"ok"}'
    again.close()
