import itertools
from dataclasses import dataclass

import pytest

from backend.store.store import Store
from tests.backend.s3_server import BUCKET
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


@pytest.fixture
def bucket(s3_server):
    """The URL of an empty prefix in a bucket."""
    return f"{BUCKET}/prefix-{next(_prefixes)}"
