import json
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks import gpu_engine, gpu_handover

SCRIPT = Path(benchmarks.__path__[0]) / "gpu.py"


def test_runs_gpu_script_on_a_cpu(tmp_path):
    result = tmp_path / "gpu.json"
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", "--tiny", "--json", str(result)],
        cwd=tmp_path,  # it must not need the repository
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    written = json.loads(result.read_text())
    assert written["details"]["tiny"]["parity"]["mean"] <= 2e-2
    assert len(written["figures"]) == 3


@pytest.fixture
def details(tmp_path, monkeypatch):
    """Run a script in this process, which has imported torch already, and return what it found."""

    def run(script):
        result = tmp_path / "result.json"
        arguments = ["--device", "cpu", "--tiny", "--json", str(result)]
        monkeypatch.setattr(sys, "argv", [script.__name__, *arguments])
        assert script.main() == 0
        return json.loads(result.read_text())["details"]["tiny"]

    return run


def test_decodes_on_cpu_with_tiny_model_as_a_forward_does(details):
    numbers = details(gpu_engine)
    assert numbers["parity"] <= 2e-2
    assert numbers["share"] > 0


def test_hands_weights_to_another_process_without_gpu_too(details):
    numbers = details(gpu_handover)
    assert numbers["same"]
    assert numbers["share_seconds"].keys() == {"host"}
