"""`scripts/test_all.sh` with stand-ins of what runs its parts."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "test_all.sh"
PARTS = re.search(r"^parts=\((.*)\)$", SCRIPT.read_text(), re.MULTILINE)[1].split()


@pytest.fixture
def run_all(tmp_path):
    """Return a function that runs the script; the parts that it names end with these exit statuses."""
    stand_ins = {
        ".venv/bin/python": 'case "$*" in *--ignore*) part=marked ;; *) part=recipes ;; esac',
        "scripts/test_extras.sh": "part=$1",
        "scripts/test_vllm.sh": "part=vllm",
    }
    for name, what in stand_ins.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/usr/bin/env bash\n{what}\necho "$part" >>ran\neval "exit \\${{$part-0}}"\n')
        path.chmod(0o755)
    shutil.copy(SCRIPT, tmp_path / "scripts")

    def run(*arguments, **statuses):
        environment = os.environ | {part: str(status) for part, status in statuses.items()}
        command = ["bash", "scripts/test_all.sh", *arguments]
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        ran = tmp_path / "ran"
        return ended.returncode, ran.read_text().split() if ran.exists() else [], ended.stdout

    return run


def test_runs_every_part(run_all):
    assert run_all()[:2] == (0, PARTS)


def test_begins_with_another_part_at_each_commit(run_all):
    assert run_all("--seconds", "9999", "--first", str(len(PARTS) + 2))[:2] == (0, PARTS[2:] + PARTS[:2])


def test_says_what_it_leaves_out_for_want_of_time(run_all):
    status, ran, said = run_all("--seconds", "130")
    assert status == 0
    assert {"trackers", "verifiers", "openenv"} <= set(ran)
    assert not {"recipes", "marked", "s3", "vllm", "alfworld"} & set(ran)
    assert all(f"{part} was left out" in said for part in PARTS if part not in ran)


def test_goes_on_without_packages_and_ends_at_a_failure(run_all):
    status, ran, said = run_all(trackers=3, verifiers=1)
    assert (status, ran) == (1, PARTS[: PARTS.index("verifiers") + 1])
    assert "trackers was left out" in said


def test_runs_the_named_parts_only(run_all):
    assert run_all("openenv", "marked")[:2] == (0, ["openenv", "marked"])
    assert run_all("nothing")[0] == 2
