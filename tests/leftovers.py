"""Fails a test, or the fixtures of a file, that leaves a thread, process, socket or changed setting behind.

What a test leaves works on in the tests after it: it logs into their output, takes their jobs and their time,
and with another number of threads they compute other bits. Settings are those of loggers, torch's number of
threads, and our environment variables.
What a fixture of a file or of the whole run has opened may stay, with all that it starts.
"""

import contextlib
import functools
import gc
import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from httpx._client import BaseClient

PATIENCE_SECONDS = float(os.environ.get("TINKERGYM_LEFTOVER_SECONDS", "60"))
"""How long what has been told to end may take."""

# They serve the whole process, and end with it.
_THREADS_OF_THE_PROCESS = (
    "weights-hash",
    "async-scores",
    "verifiers ",
    "tqdm_monitor",
    "_telemetry_worker",
    "fsspecIO",
    "asyncio_0",
)
_CHILDREN_OF_THE_PROCESS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "math_worker.py",
    "verifiers_worker.py",
)
_SOCKETS_OF_THE_PROCESS = "tinkergym/user_code/returned_values.py"
_FILES_OF_OWNERS = ("/httpx/_client.py", "/concurrent/futures/thread.py")
_OURS = ("tinkergym", "backend")
_OUR_VARIABLES = "TINKERGYM_"
_UNCHANGED = (logging.NOTSET, True, False, [], [])
"""A logger that nobody has set."""
_WIDER = {"function": ("class", "module", "package", "session"), "module": ("package", "session")}


@dataclass(frozen=True)
class _Origin:
    """Who started a thread or process or opened a socket, and where."""

    by: threading.Thread
    site: str
    number: int
    owner: int | None
    """The number of the client or executor that opened or started it."""


@dataclass
class _State:
    """What there is at one moment. Cheap: it is taken twice for each test."""

    threads: set[threading.Thread] = field(default_factory=set)
    processes: set[int] = field(default_factory=set)
    sockets: set[int] = field(default_factory=set)
    """Numbers, in the order of their opening. What libraries in C open is not ours."""
    settings: dict[str, object] = field(default_factory=dict)
    number: int = field(default_factory=lambda: next(_numbers), compare=False)
    """What has a smaller number was there before."""

    @classmethod
    def now(cls) -> "_State":
        return cls(set(threading.enumerate()), _processes(), _sockets(), _settings())

    def add_news(self, before: "_State", after: "_State") -> None:
        self.threads |= after.threads - before.threads
        self.processes |= after.processes - before.processes
        self.sockets |= after.sockets - before.sockets
        self.settings |= dict.fromkeys(before.settings) | after.settings


_opened: weakref.WeakKeyDictionary[socket.socket, _Origin] = weakref.WeakKeyDictionary()
_started: dict[int, _Origin] = {}
"""By process id."""
_owners: weakref.WeakKeyDictionary[BaseClient | ThreadPoolExecutor, int] = weakref.WeakKeyDictionary()
"""They open sockets and start threads when these are first needed."""
_numbers = itertools.count()
_may_stay = {scope: _State() for scope in _WIDER["function"]}
"""What fixtures of each scope have opened; and what has been named once is not named again."""


def _origin() -> _Origin:
    frame, site, owner = sys._getframe(2), [], None
    while frame is not None and len(site) < 3:
        path = frame.f_code.co_filename
        if owner is None and path.endswith(_FILES_OF_OWNERS):
            one = frame.f_locals.get("self")
            owner = _owners.get(one) if isinstance(one, BaseClient | ThreadPoolExecutor) else None
        if "/lib/python" not in path and not path.startswith("<"):
            site.append(f"{path.removeprefix(_ROOT)}:{frame.f_lineno}")
        frame = frame.f_back
    return _Origin(threading.current_thread(), " < ".join(site), next(_numbers), owner)


_ROOT = str(__file__).removesuffix("tests/leftovers.py")
_start, _open, _spawn = threading.Thread.start, socket.socket.__init__, subprocess.Popen.__init__


def _start_and_remember(thread: threading.Thread) -> None:
    thread._origin = _origin()
    _start(thread)


def _open_and_remember(one: socket.socket, *arguments: object, **settings: object) -> None:
    _open(one, *arguments, **settings)
    _opened[one] = _origin()


def _spawn_and_remember(process: subprocess.Popen, *arguments: object, **settings: object) -> None:
    _spawn(process, *arguments, **settings)
    _started[process.pid] = _origin()


def _numbering(owner: type[BaseClient | ThreadPoolExecutor]) -> None:
    make = owner.__init__

    def make_and_number(one: BaseClient | ThreadPoolExecutor, *arguments: object, **settings: object) -> None:
        make(one, *arguments, **settings)
        _owners[one] = next(_numbers)

    owner.__init__ = make_and_number


threading.Thread.start = _start_and_remember
_numbering(BaseClient)
_numbering(ThreadPoolExecutor)
subprocess.Popen.__init__ = _spawn_and_remember
socket.socket.__init__ = _open_and_remember


def _open_sockets() -> list[socket.socket]:
    there = [reference() for reference in _opened.keyrefs()]  # a copy: other threads open more meanwhile
    return [one for one in there if one is not None and one.fileno() != -1]


def _sockets() -> set[int]:
    return {_opened[one].number for one in _open_sockets()}


_TASKS = Path("/proc/self/task")
"""Each thread's folder: what lists its children."""


def _processes() -> set[int]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # none: nearly always, and known in a microsecond
        return set()
    if not _TASKS.exists():  # No Linux: psutil looks at all processes of the machine.
        return {child.pid for child in psutil.Process().children()}
    found: set[int] = set()
    for task in _TASKS.iterdir():
        with contextlib.suppress(OSError):  # It may have ended.
            found.update(map(int, (task / "children").read_bytes().split()))
    return found


def _settings() -> dict[str, object]:
    known = logging.root.manager.loggerDict
    ours = [logging.root, *(known[name] for name in _our_names(len(known)))]
    found = {f"logger {one.name!r}": _settings_of(one) for one in ours if isinstance(one, logging.Logger)}
    found |= {name: value for name, value in os.environ.items() if name.startswith(_OUR_VARIABLES)}
    if threads := getattr(sys.modules.get("torch"), "get_num_threads", None):
        found["torch's number of threads"] = threads()
    return found


@functools.lru_cache(maxsize=1)
def _our_names(_count: int) -> list[str]:
    """Our loggers' names among so many: libraries have thousands, and no name ever goes."""
    return [name for name in list(logging.root.manager.loggerDict) if name.startswith(_OURS)]


def _settings_of(logger: logging.Logger) -> tuple[object, ...]:
    # pytest's own handlers come and go with the phases of a test.
    handlers = [one for one in logger.handlers if not type(one).__module__.startswith("_pytest")]
    return logger.level, logger.propagate, logger.disabled, handlers, list(logger.filters)


def _left(before: _State, scope: str) -> list[str]:
    """Name what is new and does not end in time."""
    kept = _State()
    for wider in _WIDER.get(scope, ()):
        kept.add_news(_State(), _may_stay[wider])
    main = threading.current_thread()
    stays = (before.threads | kept.threads) - {main}
    deadline = time.monotonic() + PATIENCE_SECONDS

    def belongs(origin: _Origin | None) -> bool:
        """Whether something that was there before, or that may stay, made this."""
        while origin is not None:
            if origin.by in stays or (origin.owner is not None and origin.owner < before.number):
                return True
            origin = getattr(origin.by, "_origin", None)
        return False

    return [
        *_threads_left(stays | {main}, belongs, deadline),
        *_processes_left(before.processes | kept.processes, belongs, deadline),
        *_sockets_left(before.sockets | kept.sockets, belongs),
        *_settings_left(before.settings, kept.settings),
    ]


def _threads_left(
    known: set[threading.Thread], belongs: Callable[[_Origin | None], bool], deadline: float
) -> Iterator[str]:
    for thread in set(threading.enumerate()) - known:
        origin = getattr(thread, "_origin", None)
        # Python makes a dummy for each foreign thread, and keeps it after the thread's end.
        foreign = isinstance(thread, threading._DummyThread)
        if foreign or any(name in thread.name for name in _THREADS_OF_THE_PROCESS) or belongs(origin):
            continue
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            yield f"thread {thread.name!r}, started at {origin and origin.site}"


def _processes_left(
    known: set[int], belongs: Callable[[_Origin | None], bool], deadline: float
) -> Iterator[str]:
    new = _processes() - known
    if not new:
        return
    commands = {child: _command(child) for child in psutil.Process().children() if child.pid in new}
    ours = [
        child
        for child, command in commands.items()
        if not belongs(_started.get(child.pid))
        and not any(name in command for name in _CHILDREN_OF_THE_PROCESS)
    ]
    _, alive = psutil.wait_procs(ours, timeout=max(0.0, deadline - time.monotonic()))
    for process in alive:
        origin = _started.get(process.pid)
        yield f"process {process.pid}: {commands[process][:200]}, started at {origin and origin.site}"


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # It has ended.
        return ""


def _sockets_left(known: set[int], belongs: Callable[[_Origin | None], bool]) -> Iterator[str]:
    if _sockets() - known:
        gc.collect()  # No harm is in a client that was forgotten and not closed: its socket goes with it.
        for one in _open_sockets():
            origin = _opened[one]
            if origin.site.startswith(_SOCKETS_OF_THE_PROCESS):
                continue
            if origin.number not in known and not belongs(origin):
                yield f"socket {one}, opened at {origin.site}"


def _settings_left(before: dict[str, object], kept: dict[str, object]) -> Iterator[str]:
    now = _settings()
    for name in before | now:
        new = now.get(name)
        first = _UNCHANGED if name.startswith("logger ") else new if "torch" in name else None
        was = before.get(name, first)
        if new not in (was, kept.get(name, was)):
            yield f"setting {name}: {new}, which was {was}"


@contextlib.contextmanager
def belonging_to(scope: str) -> Iterator[None]:
    """Let what is opened meanwhile stay until a `scope` ends: one of its fixtures ends it."""
    before = _State.now()
    try:
        yield
    finally:
        after = _State.now()
        after.settings = {}
        _may_stay[scope].add_news(before, after)


def _check(scope: str) -> Iterator[None]:
    before = _State.now()
    yield
    after = _State.now()
    if after == before:
        return
    if left := _left(before, scope):
        _may_stay["session"].add_news(before, after)
        pytest.fail(f"this {scope} leaves behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def _nothing_of_a_test_is_left():
    yield from _check("function")


@pytest.fixture(autouse=True, scope="module")
def _nothing_of_a_file_is_left():
    yield from _check("module")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    """Remember what a fixture of a wider scope opens, whenever it is first asked for."""
    if fixturedef.scope == "function":
        return (yield)
    with belonging_to(fixturedef.scope):
        return (yield)
