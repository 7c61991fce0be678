"""Runs the code of a page from top to bottom, as a reader would type it.

- ```sh: a shell in the page's folder.
- ```python: a program of its own process, together with those that follow before a shell block or a file.
  It trains for one step, however many the page names.
- ```LANGUAGE file=PATH: a file that the reader writes.
- ```output: what the block before it prints; `...` stands for anything, space for any space.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from backend.testing.scripted_service import ScriptedService

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_STEPS = re.compile(r"\bsteps=\d+")

_MARK = "-- next block --"
_BETWEEN = f"\nprint({_MARK!r})\n"

# As the page says it, but without a network and away from this interpreter's own packages.
_PIP = """#!/bin/sh
command=$1; shift
case $command in
  install) rm -rf "{site}"/*; set -- --target "{site}" "$@" ;;
  wheel) ;;
  *) echo "pip $command is not for these pages" >&2; exit 1 ;;
esac
exec "{python}" -m pip --disable-pip-version-check "$command" -q --no-deps --no-build-isolation "$@"
"""


@dataclass
class Reader:
    """Follows a page in a folder of their own."""

    folder: Path
    environ: dict[str, str]
    shown: str = ""
    program: list[str] = field(default_factory=list)
    expected: dict[int, str] = field(default_factory=dict)
    """By the number of a block of the program, what it prints."""

    def follow(self, page: Path) -> None:
        """Run every block in order."""
        for language, path, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
            if language == "python" and not path:
                self.program.append(_STEPS.sub("steps=1", text))
            elif language == "output" and self.program:
                self.expected[len(self.program) - 1] = text
            elif language == "output":
                _compare(text, self.shown)
            elif path:
                self._run_program()
                (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / path).write_text(text, encoding="utf-8")
            elif language == "sh":
                self._run_program()
                self.shown = self.run(["bash", "-euc", text])
        self._run_program()

    def write_files(self, page: Path) -> list[str]:
        """Write the page's files; return its blocks of Python, to be run together."""
        blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
        for _, path, text in blocks:
            if path:
                (self.folder / path).write_text(text, encoding="utf-8")
        return [text for language, path, text in blocks if language == "python" and not path]

    def run(self, command: list[str]) -> str:
        """Run a command and return what it prints, to both streams."""
        ran = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout}"
        return ran.stdout

    def python(self, code: str) -> str:
        """Run a program and return what it prints."""
        return self.run([sys.executable, "-W", "error", "-c", code])

    def _run_program(self) -> None:
        parts, expected = self.program, self.expected
        self.program, self.expected = [], {}
        if parts:
            shown = self.python(_BETWEEN.join(parts)).split(_MARK)
            for number, text in expected.items():
                _compare(text, shown[number])


def _compare(text: str, shown: str) -> None:
    words = [".*?" if word == "..." else re.escape(word) for word in text.split()]
    assert re.search(r"\s+".join(words).replace(r"\s+.*?\s+", r"\s.*?"), shown, re.DOTALL), (
        f"{text}\nis not in\n{shown}"
    )


@pytest.fixture
def reader(tmp_path):
    """A reader with an empty folder, an empty place to install into, and a service without a model."""
    tools, site, folder = tmp_path / "bin", tmp_path / "site", tmp_path / "folder"
    for path in (tools, site, folder):
        path.mkdir()
    (tools / "pip").write_text(_PIP.format(python=sys.executable, site=site))
    (tools / "pip").chmod(0o755)
    with ScriptedService(lambda prompt: "5") as service:
        yield Reader(
            folder,
            {
                **os.environ,
                "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]),
                "PYTHONPATH": str(site),
                "COLUMNS": "200",
                "TINKERGYM_URL": service.url,
                "TINKERGYM_HOME": str(service.data_dir),
                "TINKERGYM_API_KEY": service.api_key,
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
