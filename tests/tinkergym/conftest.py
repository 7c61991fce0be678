import threading

import pytest

from tinkergym.remote.client import Client
from tinkergym.testing.scripted_service import ScriptedService

_MOMENT_SECONDS = 10.0


@pytest.fixture
def start_service(monkeypatch):
    """Start services that end with the test; a client finds the last one by the environment."""
    services = []

    def start(*args, **kwargs):
        service = ScriptedService(*args, **kwargs)
        services.append(service)
        monkeypatch.setenv("TINKERGYM_URL", service.url)
        monkeypatch.setenv("TINKERGYM_API_KEY", service.api_key)
        return service

    yield start
    for service in services:
        service.close()


@pytest.fixture(autouse=True)
def nothing_plays_on():
    """Fail a test that leaves a playing thread behind: what it says later lands in another test's output."""
    before = set(threading.enumerate())
    yield
    playing = [t for t in threading.enumerate() if t.name == "tinkergym-rollout" and t not in before]
    for thread in playing:  # one whose job has just ended hears of it in a moment
        thread.join(_MOMENT_SECONDS)
    assert not any(thread.is_alive() for thread in playing), (
        "end the test with job.close(), or with client.train(...) as job"
    )


@pytest.fixture
def service(start_service):
    return start_service()


@pytest.fixture
def client(service):
    with Client() as client:
        yield client
