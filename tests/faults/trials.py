"""Runs tests in copies of the tree, with a fault or without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.faults.seeded import ROOT, Fault

TEST_SECONDS = 300
"""A test that takes longer is ended, and says nothing about a fault."""

PASSED, FAILED = "passed", "failed"

_NOT_THE_FAULT = ("ImportError", "ModuleNotFoundError", "SyntaxError", "Failed: Timeout")
"""How failures begin that any slip could cause, or a slow machine."""


class TrialError(Exception):
    """No test could judge: pytest ended early."""


class Tree:
    """A copy of the working tree: what git tracks or does not ignore, as it is now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
            if name and (ROOT / name).is_file():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        self._seconds = count(int(time.time()) + 1)

    @contextmanager
    def changed(self, fault: Fault) -> Iterator[None]:
        """Hold the fault for a while."""
        path = self.folder / fault.file
        text = path.read_text()
        self._write(path, text.replace(fault.old, fault.new))
        try:
            yield
        finally:
            self._write(path, text)

    def run(self, tests: Iterable[str], *, to_the_end: bool = False) -> dict[str, str]:
        """Run tests on this copy's code, until the first that fails or to the end.

        Returns:
            `PASSED`, `FAILED` or why a test could not judge, by node id.

        Raises:
            TrialError: pytest ended before it ran them, such as after an import that failed.
        """
        report = self.folder / "report.xml"
        paths = [self.folder, *sorted(path.parent for path in self.folder.glob("envs/*/pyproject.toml"))]
        ended = subprocess.run(
            [
                *(
                    sys.executable,
                    "-m",
                    "pytest",
                    "-q",
                    "-p",
                    "no:cacheprovider",
                    "-o",
                    "junit_family=xunit1",
                ),
                *(f"--junitxml={report}", f"--timeout={TEST_SECONDS}", *([] if to_the_end else ["-x"])),
                *tests,
            ],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTEST_ADDOPTS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ended.returncode not in (0, 1):
            said = [line for line in ended.stdout.splitlines() if line.strip()]
            raise TrialError(f"pytest ended with {ended.returncode}: {said[-1] if said else 'no output'}")
        return {_node_id(case): _verdict(case) for case in ET.parse(report).iter("testcase")}

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        # Python takes compiled code for current while a file's size and its time in seconds are the same.
        later = next(self._seconds)
        os.utime(path, (later, later))


def _verdict(case: ET.Element) -> str:
    for kind in ("error", "failure", "skipped"):
        if (found := case.find(kind)) is not None:
            message = found.get("message", "")
            if kind == "failure" and not message.startswith(_NOT_THE_FAULT):
                return FAILED
            return f"{kind}: {message.partition(chr(10))[0]}"
    return PASSED


def _node_id(case: ET.Element) -> str:
    # `classname` is the file's path with dots, then the class.
    file = case.get("file", "")
    inside = case.get("classname", "").removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".")
    return "::".join(part for part in (file, inside, case.get("name", "")) if part)
