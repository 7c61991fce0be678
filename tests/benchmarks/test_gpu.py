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
