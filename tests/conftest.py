"""For all tests: programs that they start can be interrupted, environments that they register go again."""

import signal

import pytest

from backend.store import sqlite_file
from tests.warm_stores import use_warm_stores
from tinkergym.registration.environments import register, unregister
from tinkergym.testing.faults import hangs_end

# `nohup make test &` ignores both signals, and programs started from here would inherit that. A handler is
# not inherited, so they start with the usual behaviour, and the run itself still survives a closed terminal.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)

sqlite_file.SYNCHRONOUS = "OFF"  # as `os.fsync`, see the other conftest.py
use_warm_stores()


@pytest.fixture
def said_by(caplog):
    """Return what one logger has said in this test: what else runs in the process may speak, too."""

    def said_by(logger):
        return [record.getMessage() for record in caplog.records if record.name == logger]

    return said_by


@pytest.fixture
def end_hangs():
    """End with the test what hangs in threads of this process."""
    hangs_end.clear()
    yield
    hangs_end.set()


@pytest.fixture
def register_environment():
    """Register environments until the test ends: other tests list and play whatever is registered."""
    ids = []

    def register_until_the_end(environment_id, entry_point):
        register(environment_id, entry_point)
        ids.append(environment_id)

    yield register_until_the_end
    for environment_id in ids:
        unregister(environment_id)
