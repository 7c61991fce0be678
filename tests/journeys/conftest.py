"""A service with everything in it, for all journeys of a process: to start one takes seconds."""

import pytest

import tinkergym as tg
from tinkergym.cli.local_service import local_service


@pytest.fixture(scope="package")
def service(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKERGYM_HOME", str(tmp_path_factory.mktemp("home")))
        for name in ("TINKERGYM_URL", "TINKERGYM_API_KEY"):
            patch.delenv(name, raising=False)
        with local_service(announce=lambda line: None):
            yield


@pytest.fixture
def client(service):
    with tg.Client() as client:
        yield client
