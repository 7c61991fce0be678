import itertools
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from backend.store.object_blobs import ObjectBlobs
from backend.store.store import Store
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite:///{tmp_path / 'store.sqlite3'}"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def url(request):
    """Every test runs with both databases, except where a file says otherwise."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def store(url, clock):
    store = Store.open(url, clock=clock)
    for tenant in ("ada", "bob"):
        store.keys.ensure_tenant(tenant)
    yield store
    store.close()


@pytest.fixture
def spec():
    return RLSpec(environment=EnvironmentRef(id="board/TicTacToeVs-v0"), steps=5)


_prefixes = itertools.count()


@pytest.fixture(scope="session")
def s3_server():
    """A server that speaks S3, where moto is installed: the URL, and credentials in the environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    names = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 0.2).close()
                break
            except OSError:
                assert server.poll() is None, "moto ended"
                time.sleep(0.05)
        # Here, so that fsspec's thread and its connections belong to the session.
        ObjectBlobs("s3://blobs", None)._fs.mkdir("blobs")
        yield url
    server.kill()
    server.wait()


@pytest.fixture
def bucket(s3_server):
    """The URL of an empty prefix in a bucket."""
    return f"s3://blobs/prefix-{next(_prefixes)}"
