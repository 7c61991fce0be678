"""`scripts/install.sh` on a folder of its own, with a .venv whose python installs nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install.sh"

PYTHON = """#!/bin/sh
case "$*" in
  *"pip list"*) exit 0 ;;
  *"-m pip"*) echo "no way to the registry"; exit 1 ;;
  *transformers*) exit {imports} ;;
  *version*) echo 2.13.0 ;;
esac
"""

pytestmark = pytest.mark.skipif(
    shutil.disk_usage(SCRIPT).free < 4 * 10**9, reason="the script asks for 3 GB of free disk"
)


@pytest.fixture
def update(tmp_path):
    """Return a function that tries to update a .venv in vain; its process comes back."""
    for name in ("pyproject.toml", "constraints.txt", "envs/a/pyproject.toml", "scripts/install.sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)

    def run(*, imports: bool) -> subprocess.CompletedProcess[str]:
        python.write_text(PYTHON.format(imports=0 if imports else 1))
        python.chmod(0o755)
        (tmp_path / ".venv" / ".complete").write_text(f"of-an-older-state {tmp_path}")
        return subprocess.run(
            ["bash", "scripts/install.sh"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHON": sys.executable},
        )

    return run


def test_keeps_working_venv_after_a_failed_update(update, tmp_path):
    for _ in range(2):
        result = update(imports=True)
        assert result.returncode != 0
        assert "bringing .venv up to date" in result.stdout
        assert "no way to the registry" in result.stderr
        assert "still works and was kept" in result.stderr
        assert (tmp_path / ".venv" / "bin" / "python").exists()


def test_removes_a_venv_that_a_failed_update_broke(update, tmp_path):
    result = update(imports=False)
    assert result.returncode != 0
    assert "the next run starts clean" in result.stderr
    assert not (tmp_path / ".venv").exists()
