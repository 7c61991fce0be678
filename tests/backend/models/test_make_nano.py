import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "make_nano.py"


@pytest.mark.slow
def test_the_same_seed_makes_the_same_model_and_another_seed_another(tmp_path):
    def hashes(name: str, seed: int) -> dict[str, str]:
        output = tmp_path / name
        command = [sys.executable, str(SCRIPT), "--steps", "2", "--games", "0", "--threads", "1"]
        subprocess.run([*command, "--seed", str(seed), "--output", str(output)], check=True, timeout=200)
        paths = sorted(output.glob("[!R]*"))  # the card says how long it took
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    first = hashes("first", 0)
    assert "model.safetensors" in first
    assert hashes("again", 0) == first
    assert hashes("other", 1)["model.safetensors"] != first["model.safetensors"]
