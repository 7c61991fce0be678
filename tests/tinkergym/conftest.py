import contextlib
import functools

import pytest
import typer.testing

from backend.testing.scripted_service import ScriptedService
from tinkergym.remote.client import Client

# The command line is built once, not for each command of a test.
typer.testing._get_command = functools.cache(typer.testing._get_command)


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


@pytest.fixture
def connect(start_service):
    """Make clients that close before the services that they know."""
    with contextlib.ExitStack() as clients:
        yield lambda *args, **kwargs: clients.enter_context(Client(*args, **kwargs))


@pytest.fixture
def service(start_service):
    return start_service()


@pytest.fixture
def client(service):
    with Client() as client:
        yield client
