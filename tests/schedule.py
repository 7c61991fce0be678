"""In which order the tests run: groups of tests that share a service, those that take longest first.

A group is a file, or a folder whose files share a service. One process runs all of it, so that the service
starts once. `tests/durations.json` has the seconds that each file takes; `make durations` measures them. With
`--shuffle` the groups come in random order, and so do the tests of each.
"""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).with_name("durations.json")

QUICK_SECONDS = 1
"""`--quick` leaves out files that take longer."""

_SHARED = ("tests/journeys/", "tests/backend/learner/parallel/")
"""Folders whose files share a service or other processes."""


def group_of(node_id: str) -> str:
    """Return the group of a test."""
    path = node_id.partition("::")[0]
    return next((folder for folder in _SHARED if path.startswith(folder)), path)


def record_key(node_id: str, markers: Iterable[str]) -> str:
    """Return under which name a test's time is recorded: its file, apart for what `make test` leaves out."""
    path = node_id.partition("::")[0]
    return f"{path} (full)" if "full" in markers else path


def read_record(record: Path = RECORD) -> dict[str, float]:
    """Return the recorded seconds of each file."""
    return json.loads(record.read_text())


@cache
def _slow_files() -> frozenset[str]:
    """Return the files that `--quick` leaves out."""
    return frozenset(path for path, seconds in read_record().items() if seconds > QUICK_SECONDS)


def longest_first(items: Iterable[pytest.Item], record: Mapping[str, float]) -> list[pytest.Item]:
    """Order tests by the recorded time of their groups."""
    items = list(items)
    keys = {record_key(item.nodeid, item.keywords): group_of(item.nodeid) for item in items}
    seconds: dict[str, float] = defaultdict(float)
    for key, group in keys.items():
        seconds[group] += record.get(key, 0)

    def place(item: pytest.Item) -> tuple[float, str]:
        group = group_of(item.nodeid)
        return -seconds[group], group

    return sorted(items, key=place)


def shuffled(items: Iterable[pytest.Item], seed: int) -> list[pytest.Item]:
    """Put groups, and the tests of each, in random order; files of a group stay whole."""
    items = list(items)
    random.Random(seed).shuffle(items)
    return _gathered(_gathered(items, lambda item: item.path), lambda item: group_of(item.nodeid))


def _gathered(items: Sequence[pytest.Item], whole: Callable[[pytest.Item], object]) -> list[pytest.Item]:
    """Put what belongs to one whole together, where its first is."""
    first: dict[object, int] = {}
    for number, item in enumerate(items):
        first.setdefault(whole(item), number)
    return sorted(items, key=lambda item: first[whole(item)])


class Groups(LoadScopeScheduling):
    """Hands whole groups, in the order of the tests, to processes that have little left to do."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


class Recorder:
    """Adds up how long the tests of each file take, fixtures included, and writes the record."""

    def __init__(self, root: Path = ROOT, record: Path = RECORD) -> None:
        self._root, self._record = root, record
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test's setup, call or teardown, of whichever process."""
        self._seconds[record_key(report.nodeid, report.keywords)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write tenths of seconds, without files that take less than half of one or are gone."""
        measured = {key: round(seconds, 1) for key, seconds in self._seconds.items()}
        record = {
            key: seconds
            for key, seconds in sorted((read_record(self._record) | measured).items())
            if seconds >= 0.5 and (self._root / key.partition(" ")[0]).exists()
        }
        self._record.write_text(json.dumps(record, indent=0) + "\n")


def pytest_addoption(parser):
    """Add the options."""
    parser.addoption(
        "--shuffle",
        nargs="?",
        type=int,
        const=-1,
        metavar="SEED",
        help="run the files, and the tests of each file, in random order; the seed is printed",
    )
    parser.addoption("--quick", action="store_true", help="leave out files that took long, by the record")
    parser.addoption(
        "--record-durations",
        action="store_true",
        help="write how long each file took to tests/durations.json",
    )


def pytest_configure(config):
    """Draw the seed once: the processes that share the tests inherit it."""
    if config.option.shuffle == -1:
        drawn = os.environ.setdefault("TINKERGYM_SHUFFLE", str(random.SystemRandom().randrange(10**6)))
        config.option.shuffle = int(drawn)
    if config.option.record_durations and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


def pytest_report_header(config):
    """Say how to run the tests in this order again."""
    seed = config.option.shuffle
    return None if seed is None else f"random order: --shuffle={seed}"


def pytest_ignore_collect(collection_path, config):
    """Leave out whole files, as their imports take long, too."""
    path = collection_path.relative_to(ROOT).as_posix() if collection_path.is_relative_to(ROOT) else ""
    return True if config.option.quick and path in _slow_files() else None


@pytest.hookimpl(tryfirst=True)  # before pytest itself, which brings tests with an equal fixture together
def pytest_collection_modifyitems(config, items):
    """Order the tests; a group that began last would leave the other cores idle."""
    for marker in (item.get_closest_marker("full") for item in items):
        if marker is not None and not marker.args:
            raise pytest.UsageError("`full` needs a reason: why does `make test` leave the test out?")
    if (seed := config.option.shuffle) is not None:
        items[:] = shuffled(items, seed)
    else:
        items[:] = longest_first(items, read_record())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Share tests out by groups, unless `--dist` asks for something else."""
    if config.getvalue("dist") != "load":  # what `-n` alone means
        return None
    config.option.loadscopereorder = False
    return Groups(config, log)
