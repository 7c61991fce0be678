"""The list of seeded faults, as its files describe them."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One slip, and the tests that must fail on it."""

    id: str
    what: str
    file: str
    """Path in the tree."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Node ids of pytest, with or without a case in brackets."""
    area: str = ""
    """Name of the file that lists it, without its ending."""

    def problem(self, root: Path = ROOT) -> str | None:
        """Say what in the tree this entry no longer fits; None if it fits."""
        path = root / self.file
        found = path.read_text().count(self.old) if path.is_file() else 0
        if found != 1:
            return f"`old` occurs {found} times in {self.file}"
        if self.new == self.old or not self.tests:
            return "it changes nothing, or names no tests"
        missing = [test for test in self.tests if not _exists(root, test)]
        return f"there is no test {missing[0]}" if missing else None


def read(folder: Path) -> list[Fault]:
    """Read all entries of the lists in a folder, in the order of their files.

    Raises:
        ValueError: Two entries have one id, or an entry has other fields.
    """
    faults: dict[str, Fault] = {}
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text()).get("fault", []):
            try:
                fault = replace(Fault(**{**entry, "tests": tuple(entry["tests"])}), area=path.stem)
            except (KeyError, TypeError) as error:
                raise ValueError(f"{path}: entry {entry.get('id')}: {error}") from None
            if fault.id in faults:
                raise ValueError(f"{path}: {fault.id} is listed twice")
            faults[fault.id] = fault
    return list(faults.values())


def chosen(faults: Iterable[Fault], names: Iterable[str]) -> list[Fault]:
    """Return the faults with these ids or of these areas; all of them for no names.

    Raises:
        ValueError: A name is neither an id nor an area.
    """
    faults, names = list(faults), set(names)
    if unknown := names - {fault.id for fault in faults} - {fault.area for fault in faults}:
        raise ValueError(f"neither an id nor an area: {', '.join(sorted(unknown))}")
    return [fault for fault in faults if not names or {fault.id, fault.area} & names]


def _exists(root: Path, test: str) -> bool:
    name, *inside = test.partition("[")[0].split("::")
    return bool(inside) and (root / name).is_file() and "::".join(inside) in _names(root / name)


@cache
def _names(path: Path) -> frozenset[str]:
    """Return the functions of a test file, those of classes after their class's name."""
    functions, tree = (ast.FunctionDef, ast.AsyncFunctionDef), ast.parse(path.read_text())
    own = {node.name for node in tree.body if isinstance(node, functions)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    methods = {
        f"{one.name}::{node.name}" for one in classes for node in one.body if isinstance(node, functions)
    }
    return frozenset(own | methods)
