import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_engine, gpu_handover


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Run a script in this process, which has imported torch already, and return what it wrote."""

    def run(script):
        result = tmp_path / "result.json"
        arguments = ["--device", "cpu", "--tiny", "--json", str(result)]
        monkeypatch.setattr(sys, "argv", [script.__name__, *arguments])
        assert script.main() == 0
        return json.loads(result.read_text())

    return run


def test_runs_gpu_script_on_a_cpu_without_the_repository(written):
    found = written(gpu)
    assert found["details"]["tiny"]["parity"]["mean"] <= 2e-2
    assert len(found["figures"]) == 3
    assert not re.search(
        r"^\s*(from|import) (tinkergym|backend|benchmarks|tests)", Path(gpu.__file__).read_text(), re.M
    )


def test_decodes_on_cpu_with_tiny_model_as_a_forward_does(written):
    numbers = written(gpu_engine)["details"]["tiny"]
    assert numbers["parity"] <= 2e-2
    assert numbers["share"] > 0


@pytest.mark.full("starts another process with torch")
def test_hands_weights_to_another_process_without_gpu_too(written):
    numbers = written(gpu_handover)["details"]["tiny"]
    assert numbers["same"]
    assert numbers["share_seconds"].keys() == {"host"}
