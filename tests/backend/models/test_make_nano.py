import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        ["make_nano.py", "--games", "0", "--tokenizer-dialogues", "100"],
        ["make_nano_instruct.py", "--dialogues", "0", "--tokenizer-dialogues", "100"],
    ],
    ids=lambda r: r[0],
)
def test_the_same_seed_makes_the_same_model_and_another_seed_another(tmp_path, recipe):
    def hashes(name: str, seed: int) -> dict[str, str]:
        output = tmp_path / name
        script, *options = recipe
        command = [sys.executable, str(SCRIPTS / script), *options, "--steps", "2", "--threads", "1"]
        subprocess.run([*command, "--seed", str(seed), "--output", str(output)], check=True, timeout=200)
        paths = sorted(output.glob("[!R]*"))  # the card says how long it took
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    first = hashes("first", 0)
    assert "model.safetensors" in first
    assert hashes("again", 0) == first
    assert hashes("other", 1)["model.safetensors"] != first["model.safetensors"]
