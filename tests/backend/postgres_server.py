"""A private PostgreSQL server for this process, from the machine's own programs."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from backend.store.store import Store
from backend.store.tables import metadata

_START_SECONDS = 60.0


def _programs():
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    if found:
        return found[-1]
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


_EMPTIED = [table for table in reversed(metadata.sorted_tables) if not table.name.endswith("version")]


@pytest.fixture(scope="session")
def postgres_server():
    """Start PostgreSQL for the tests of this process; they are skipped where it is not installed."""
    server = PostgresServer()
    server.execute("CREATE DATABASE store")
    Store.open(server.url("store")).close()
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres_server):
    """The URL of a database with all tables, and no rows."""
    emptied = "".join(f"DELETE FROM {table.name};" for table in _EMPTIED)
    postgres_server.execute(emptied, "store")
    return postgres_server.url("store")


class PostgresServer:
    """Runs until `stop`, or until this process ends, however it ends."""

    def __init__(self, address="127.0.0.1"):
        """Listen at an address of this machine; from other machines everybody is let in."""
        self.address = address
        programs = _programs()
        if programs is None:
            pytest.skip("PostgreSQL is not installed; on Debian or Ubuntu: apt-get install postgresql")
        missing = "psycopg is not installed: pip install psycopg[binary]"
        self._psycopg = pytest.importorskip("psycopg", reason=missing)
        # PostgreSQL refuses to run as root.
        self._user = ["--reuid=postgres", "--regid=postgres", "--init-groups"] if os.getuid() == 0 else []
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))
        if self._user:
            shutil.chown(self._folder, "postgres", "postgres")
        data = self._folder / "data"
        made = ["--username=tinkergym", "--auth=trust", "--encoding=UTF8", "--no-sync"]
        self._run(programs / "initdb", f"--pgdata={data}", *made).wait()
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {address}/24 trust\n")
        with socket.socket() as free:
            free.bind((address, 0))
            self.port = free.getsockname()[1]
        settings = {
            "listen_addresses": address,
            "port": self.port,
            "unix_socket_directories": self._folder,
            "max_connections": 200,
            "shared_buffers": "32MB",
            "fsync": "off",  # as `os.fsync`, see conftest.py
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._server = self._run(programs / "postgres", "-D", data, *options)
        self._wait()

    def _run(self, *command):
        return subprocess.Popen(
            # SIGQUIT: the server ends at once, with all of its processes.
            ["setpriv", "--pdeathsig=QUIT", *self._user, *map(str, command)],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )

    def url(self, database):
        return f"postgresql://tinkergym@{self.address}:{self.port}/{database}"

    def execute(self, statement, database="postgres"):
        """Run a statement outside a transaction."""
        with self._psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement)

    def rows(self, query: str, database: str) -> list[tuple[object, ...]]:
        """Return what a query finds."""
        with self._psycopg.connect(self.url(database), autocommit=True) as connection:
            return connection.execute(query).fetchall()

    def _wait(self):
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                return self.execute("SELECT 1")
            except self._psycopg.OperationalError:
                if self._server.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise
                time.sleep(0.05)

    def freeze(self):
        """Let all processes of the server stand still."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self):
        """Let them go on."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number):
        server = psutil.Process(self._server.pid)
        for process in [server, *server.children(recursive=True)]:
            process.send_signal(number)

    def stop(self):
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
