"""Packs as real distributions on `sys.path`."""

import importlib
import subprocess
import sys

import pytest

from tinkergym.registration.packs import find_packs

GOOD = """
import tinkergym
print("imported {module}")
class Env(tinkergym.SingleTurnEnv):
    def __init__(self, level=1): print("made"); self.level = level
    def ask(self, options): return f"{module} {{self.level}}"
    def score(self, answer): return 1.0
def hard(level=9): return Env(level)
class Nim(tinkergym.TextGame):
    def __init__(self, stones=3): self.stones = stones
    def begin(self, rng): self.left = self.stones
    def legal(self, player): return ["1", "2"][: self.left]
    def play(self, player, move):
        self.left -= int(move)
        return 1.0 if self.left == 0 else None
def long_nim(stones=20): return Nim(stones)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install packs, and remove them and their modules afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def pack(distribution, points, source=GOOD, games=""):
        module = f"{distribution.replace('-', '_')}_module"
        (tmp_path / f"{module}.py").write_text(source.format(module=module) if source is GOOD else source)
        info = tmp_path / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        text = f"[tinkergym.envs]\n{points}\n[tinkergym.games]\n{games}\n".replace("MODULE", module)
        (info / "entry_points.txt").write_text(text)
        importlib.invalidate_caches()
        return module

    yield pack
    monkeypatch.undo()
    find_packs()
    for name in set(sys.modules) - before:
        if name.endswith("_module"):
            del sys.modules[name]


def fresh(code, tmp_path):
    """Run code in a new interpreter that has the installed packs; return its stdout and stderr."""
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout, run.stderr
