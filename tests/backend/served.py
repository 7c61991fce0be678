"""`tinkergym serve` as a process, with a scheduler that is a stand-in.

The gateway is the real one. The stand-in leaves a grandchild in a session of its own, as Ray does.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from backend.app.supervisor import main
from backend.config import load_config

SCHEDULER = """
import os, signal, subprocess, sys, time
from pathlib import Path
if {ignores_signals}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
child = subprocess.Popen(sleeper, start_new_session=True)
with open({pids!r}, "a") as file:
    file.write(f"{{os.getpid()}} {{child.pid}}\\n")
if {ends}:
    sys.exit(3)
time.sleep(600)
"""


SERVE = """
import sys
from backend.config import load_config
from backend.app import supervisor
supervisor.SERVICE_STOP_SECONDS = 300.0  # a test that waits for less sees what ends by itself
config = load_config(None, sys.argv[2:])
command = [sys.executable, sys.argv[1]]
sys.exit(supervisor.serve(config, scheduler_command=command, say=lambda line: print(line, flush=True)))
"""


class Served:
    """A running `serve` on a free port."""

    def __init__(self, folder: Path, *, ignores_signals=False, ends=False, settings=()):
        self.data_dir = folder / "data"
        self.pids_file = folder / "pids"
        self._script = folder / "scheduler.py"
        self._script.write_text(
            SCHEDULER.format(pids=str(self.pids_file), ignores_signals=ignores_signals, ends=ends)
        )
        self._arguments = [f"data_dir={self.data_dir}", "port=0", *settings]
        self.start()

    def start(self):
        """Start, or start again on what was there."""
        self.pids_file.unlink(missing_ok=True)
        command = [sys.executable, "-c", SERVE, str(self._script), *self._arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.before_greeting = []
        while "serves at" not in (line := self.process.stdout.readline()):
            assert line, "it ended"
            self.before_greeting.append(line)
        self.greeting = line
        self.isolation = self.process.stdout.readline()
        self.local = json.loads((self.data_dir / "local.json").read_text())
        self.url = self.local["url"]

    def get(self, path, **settings):
        headers = {"Authorization": f"Bearer {self.local['api_key']}"}
        return httpx.get(
            self.url + path, headers=headers, timeout=120, trust_env=False, verify=False, **settings
        )

    def descendants(self):
        """Everything below: children now, and what the scheduler wrote down, which may have left the tree."""
        written = self.pids_file.read_text().split() if self.pids_file.exists() else []
        below = psutil.Process(self.process.pid).children(recursive=True)
        return below + [psutil.Process(int(pid)) for pid in written if psutil.pid_exists(int(pid))]

    def gateway(self):
        return next(
            child
            for child in psutil.Process(self.process.pid).children()
            if "backend.gateway" in child.cmdline()
        )

    def scheduler_is_up(self):
        while not (self.pids_file.exists() and self.pids_file.read_text().endswith("\n")):
            assert self.process.poll() is None

    def end_by(self, number):
        """Stop it by a signal, and see that nothing of it stays."""
        self.scheduler_is_up()
        below = self.descendants()
        assert len(below) >= 4  # gateway, scheduler and its child, guardian
        sockets = load_config(None, [f"data_dir={self.data_dir}"]).run_dir
        assert sockets.exists()
        self.process.send_signal(number)
        assert self.process.wait(timeout=60.0) == 0
        assert still_alive(below) == []
        assert not sockets.exists()
        with self.process.stdout as stdout:
            assert "unfinished jobs continue" in stdout.read()

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=60.0)
        self.process.stdout.close()


@pytest.fixture
def serving(tmp_path):
    started = []

    def start(**settings):
        started.append(Served(tmp_path, **settings))
        return started[-1]

    yield start
    for served in started:
        served.close()


def refusal(capfd, *settings, code=1):
    """Run `serve` where it must refuse, and return its one sentence."""
    arguments = [word for setting in settings for word in ("--set", setting)]
    assert main(arguments) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("tinkergym serve: ")
    assert err.count("\n") == 1
    return err


def still_alive(processes):
    _, alive = psutil.wait_procs(processes, timeout=60.0)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
