"""A tracker's points after two kills of the client that reports, and re-attaching: no gap, and none doubled.

The client plays the job's episodes and reports to files. It is killed with `kill -9` in the middle, twice;
each time another process attaches with the same trackers. In the end the files are read: the points must be
those of the job's steps, each once, and so must the notes.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tinkergym as tg
from benchmarks.common import Figure, Service, service, write_result
from tinkergym.schema.events import StepEvent

STEPS = 60
KILLED_AFTER = (15, 35)
_PATIENCE_SECONDS = 300.0

_SCRIPT = """
import sys
import tinkergym as tg

client, report_to = tg.Client(), ["jsonl", "csv"]
if len(sys.argv) > 1:
    job = client.attach(sys.argv[1], report_to=report_to)
else:
    job = client.train(
        "board/TicTacToeVs-v0",
        steps={steps},
        rollout="client",
        algorithm=tg.GRPO(group_size=4, groups_per_step=2),
        evaluate=tg.EvaluateEvery(20, episodes=8),
        report_to=report_to,
    )
print(job.id, flush=True)
job.wait(progress=False, warn=False)
"""


def measure() -> list[Figure]:
    """Kill the client twice, let the third end, and read what the trackers have."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        service(None, 'preload=["nano"]') as running,
        tg.Client(running.url, running.api_key) as client,
    ):
        folder = Path(scratch)
        job_id = _run_with_kills(running, folder)
        wanted = {event.body.step for event in client.job(job_id).log() if isinstance(event.body, StepEvent)}
        found = _steps_in(folder / "runs" / job_id)
        notes = [json.loads(line) for line in (folder / "runs" / job_id / "notes.jsonl").open()]
    doubled = {name: len(steps) - len(set(steps)) for name, steps in found.items()}
    missing = {name: len(wanted - set(steps)) for name, steps in found.items()}
    doubled_notes = len(notes) - len({note["seq"] for note in notes})
    evaluations = sum(note["kind"] == "evaluation" for note in notes)
    wrong = sum(doubled.values()) + sum(missing.values()) + doubled_notes
    figure = Figure(
        what=f"a tracker's points after {len(KILLED_AFTER)} client kills and re-attaching ({STEPS} steps)",
        asked="no gap, none doubled",
        measured=f"{sum(missing.values())} missing, {sum(doubled.values())} doubled; of {len(notes)} notes "
        f"{doubled_notes} doubled",
        reached=wrong == 0 and len(wanted) == STEPS and evaluations == STEPS // 20 + 1,
    )
    return write_result(
        "tracker_kills", [figure], {"missing": missing, "doubled": doubled, "notes": len(notes)}
    )


def _run_with_kills(running: Service, folder: Path) -> str:
    job_id = ""
    for step in (*KILLED_AFTER, None):
        command = [
            sys.executable,
            "-c",
            _SCRIPT.replace("{steps}", str(STEPS)),
            *([job_id] if job_id else []),
        ]
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | running.environment, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            job_id = process.stdout.readline().strip()
            if step is None:
                process.wait(_PATIENCE_SECONDS)
                return job_id
            _wait_for(folder / "runs" / job_id / "metrics.jsonl", step)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
    raise AssertionError("the last process is not killed")


def _wait_for(path: Path, lines: int) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path.name} has not got {lines} points")
        time.sleep(0.02)


def _steps_in(folder: Path) -> dict[str, list[int]]:
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [int(row["step"]) for row in csv.DictReader(file)]
    lines = [int(json.loads(line)["step"]) for line in (folder / "metrics.jsonl").open()]
    return {"csv": rows, "jsonl": lines}
