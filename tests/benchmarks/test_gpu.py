import json
import subprocess
import sys
from pathlib import Path

import benchmarks

SCRIPT = Path(benchmarks.__path__[0]) / "gpu.py"


def test_the_gpu_script_runs_on_a_cpu_with_a_tiny_model_and_its_decoding_equals_its_forward(tmp_path):
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


def details(script, folder):
    result = folder / "result.json"
    run = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{script}", "--device", "cpu", "--tiny", "--json", str(result)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(result.read_text())["details"]["tiny"]


def test_the_engine_decodes_on_a_cpu_with_a_tiny_model_as_a_forward_does(tmp_path):
    numbers = details("gpu_engine", tmp_path)
    assert numbers["parity"] <= 2e-2
    assert numbers["share"] > 0


def test_weights_are_handed_to_another_process_without_a_gpu_too(tmp_path):
    numbers = details("gpu_handover", tmp_path)
    assert numbers["same"]
    assert numbers["share_seconds"].keys() == {"host"}
