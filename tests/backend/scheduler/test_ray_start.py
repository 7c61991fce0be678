"""An environment that prints must not fill the disk with the logs of its worker."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from backend.scheduler.ray_start import KEPT_FILES, remove_old_logs

NOISY = """
import os, sys
from pathlib import Path
from backend.scheduler.ray_start import start_ray
start_ray(Path(sys.argv[1]))
import ray

class Worker:
    def print(self):
        for _ in range(40_000):
            os.write(1, b"x" * 1023 + b"\\n")
        os.write(1, b"the end\\n")

ray.get(ray.remote(num_cpus=0)(Worker).remote().print.remote(), timeout=60)
ray.shutdown()
"""


@pytest.mark.service
@pytest.mark.full("starts Ray")
def test_bounds_the_logs_of_a_worker_that_prints_endlessly():
    with tempfile.TemporaryDirectory() as folder:  # short, for Ray's sockets
        command = [sys.executable, "-c", NOISY, f"{folder}/r"]
        subprocess.run(command, check=True, timeout=180, capture_output=True)
        logs = [file for file in Path(folder).glob("r/session_2*/logs/**/*.*") if file.is_file()]
        assert sum(file.stat().st_size for file in logs) < 12 * 2**20
        assert any(file.read_text().endswith("the end\n") for file in logs if file.suffix == ".out")


def test_keeps_newest_logs_of_ended_processes_and_all_living_ones(tmp_path):
    logs = tmp_path / "session_2026" / "logs"
    (logs / "export_events").mkdir(parents=True)
    ended = [logs / f"worker-abc-01000000-{number}.out" for number in range(1000, 1000 + KEPT_FILES)]
    old = [logs / "python-core-worker-abc_998.log", logs / "export_events" / "event_EXPORT_TASK_999.log"]
    kept = [logs / "worker-abc-01000000-7.err", logs / "worker-abc-01000000-7.err.1", logs / "raylet.out"]
    for age, file in enumerate([*kept, *old, *ended]):
        file.touch()
        os.utime(file, (age, age))
    remove_old_logs(tmp_path, alive=lambda pid: pid == 7)
    left = {file for file in logs.rglob("*.*") if file.is_file()}
    assert left == {*kept, *ended}
