import json
import sys

import pytest

from benchmarks import gpu


@pytest.mark.full("starts a service, a learner and an engine")
def test_measures_all_on_the_cpu_with_a_tiny_model(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu", "--dry", "--into", str(tmp_path)])
    assert gpu.main() == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert list(found["details"]) == ["dry", "device", "rl_step", "learner", "decoding", "parity"]
    assert found["details"]["parity"]["mean"] <= gpu.ASKED_PARITY
    assert len(found["figures"]) == 4
