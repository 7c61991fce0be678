import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
RECIPES = {
    "make_nano.py": ["--games", "0", "--tokenizer-dialogues", "100"],
    "make_nano_instruct.py": ["--dialogues", "0", "--tokenizer-dialogues", "100"],
}
RUN = """
import runpy, sys
scripts, output, *seeds = sys.argv[1:]
sys.path.insert(0, scripts)
for name, options in {recipes}.items():
    for seed in seeds:
        sys.argv = [name, *options, "--steps", "1", "--threads", "1", "--seed", seed]
        sys.argv += ["--output", f"{{output}}/{{name}}/{{seed}}"]
        runpy.run_path(f"{{scripts}}/{{name}}", run_name="__main__")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """What two processes made, with one seed in common: importing torch is what takes long."""

    def run(name, *seeds):
        output = tmp_path_factory.mktemp(name)
        code = RUN.format(recipes=RECIPES)
        # Another order of sets in each: none may matter.
        environment = {**os.environ, "PYTHONHASHSEED": str(len(seeds))}
        command = [sys.executable, "-c", code, str(SCRIPTS), str(output), *seeds]
        subprocess.run(command, check=True, timeout=200, env=environment)
        return output

    return run("first", "0", "1"), run("again", "0")


@pytest.mark.full("trains four models in two processes")
@pytest.mark.parametrize("recipe", RECIPES)
def test_makes_the_same_model_by_the_same_seed_only(made, recipe):
    def hashes(folder: Path) -> dict[str, str]:
        paths = sorted(folder.glob("[!R]*"))  # the card says how long it took
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    first, again = (hashes(output / recipe / "0") for output in made)
    assert "model.safetensors" in first
    assert again == first
    assert hashes(made[0] / recipe / "1")["model.safetensors"] != first["model.safetensors"]
