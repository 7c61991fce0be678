"""What trackers have of a job in the end, whatever happened to the scripts that reported to them."""

import json
import os
import signal
import subprocess
import sys

import pytest

import tinkergym as tg
from backend.testing.scripted_service import ScriptedService
from tinkergym.errors import InvalidRequestError
from tinkergym.reporting import JsonlTracker

ENV = "board/TicTacToeVs-v0"
STEPS = 30

# A script that is killed as soon as its tracker has this many points.
_KILLED = """
import os, signal, sys
import tinkergym as tg
from tinkergym.reporting import JsonlTracker

class Killed(JsonlTracker):
    left = int(sys.argv[3])

    def report(self, point):
        super().report(point)
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

tg.Client(sys.argv[1]).attach(sys.argv[2], report_to=Killed()).wait()
"""


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        ScriptedService(environments=[ENV]) as service,
        tg.Client(service.url, service.api_key) as client,
    ):
        monkeypatch.setenv("TINKERGYM_API_KEY", service.api_key)
        yield client


def steps_in(tmp_path, job_id):
    lines = (tmp_path / "runs" / job_id / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_reports_job_from_its_start_to_end(client, tmp_path):
    job = client.train(ENV, steps=STEPS, report_to=["jsonl", "csv"])
    job.wait()
    assert steps_in(tmp_path, job.id) == list(range(1, STEPS + 1))
    assert len((tmp_path / "runs" / job.id / "metrics.csv").read_text().splitlines()) == STEPS + 1


def test_records_every_point_once_after_two_kills_and_attaches(client, tmp_path):
    job = client.train(ENV, steps=STEPS)
    for points in (7, 11):
        script = [sys.executable, "-c", _KILLED, client.url, job.id, str(points)]
        killed = subprocess.run(script, env=dict(os.environ), cwd=tmp_path, timeout=120, check=False)
        assert killed.returncode == -signal.SIGKILL
    assert steps_in(tmp_path, job.id) == list(range(1, 19))
    client.attach(job.id, report_to="jsonl").wait()
    assert steps_in(tmp_path, job.id) == list(range(1, STEPS + 1))
    client.job(job.id).report_to("jsonl").wait()
    assert steps_in(tmp_path, job.id) == list(range(1, STEPS + 1))


def test_starts_nothing_where_a_tracker_is_unknown(client):
    with pytest.raises(InvalidRequestError):
        client.train(ENV, steps=2, report_to=[JsonlTracker(), "excel"])
    assert client.jobs() == []
