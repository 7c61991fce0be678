"""Shared by all benchmarks: a separate service, the machine's description, and the result file."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("tinkergym", "torch", "transformers", "peft", "ray", "gymnasium", "fastapi", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A row of the table: the goal and the measured figure."""

    what: str
    asked: str
    measured: str
    reached: bool
    margin: float | None = None
    """The factor by which the goal is exceeded, 1 if it is just met; None if there is none."""


@dataclass(frozen=True, slots=True)
class Service:
    """A running `tinkergym serve` with its own data folder."""

    url: str
    api_key: str
    home: Path
    process: subprocess.Popen[bytes]
    started_at: float
    """`time.perf_counter()` just before the process was started."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which a script finds this service."""
        return {
            "TINKERGYM_URL": self.url,
            "TINKERGYM_API_KEY": self.api_key,
            "TINKERGYM_HOME": str(self.home),
        }

    def key_of(self, tenant: str) -> str:
        """Make a tenant and return its key."""
        created = subprocess.run(
            [sys.executable, "-m", "backend.app.key_commands", "create", tenant],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return created.stdout.split()[-1]


def paired_ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return the ratios of pairs that were measured one right after the other, smallest first.

    A machine that others use too computes at one speed for some minutes and at two thirds of it in the
    next. Two medians would compare the minutes; a pair lies within one of them.
    """
    return sorted(one / other for one, other in zip(over, under, strict=True))


def paired_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median of `paired_ratios`."""
    return statistics.median(paired_ratios(over, under))


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def service(home: Path | None = None, *settings: str, timeout_seconds: float = 60.0) -> Iterator[Service]:
    """Start a service, yield it when its gateway answers, stop it with everything it started.

    Args:
        home: Its data folder; None makes a temporary one.
        settings: `key=value` pairs for `--set`.
        timeout_seconds: How long the gateway may take to answer.

    Raises:
        RuntimeError: The service ended or did not answer in time; the text carries its log.
    """
    import httpx

    with contextlib.ExitStack() as stack:
        if home is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tinkergym-bench-")))
        port = free_port()
        log = (home / "serve.log").open("wb")
        stack.callback(log.close)
        started_at = time.perf_counter()
        command = [sys.executable, "-m", "tinkergym.cli.main", "serve", "--port", str(port)]
        for setting in settings:
            command += ["--set", setting]
        process = subprocess.Popen(
            command, env=os.environ | {"TINKERGYM_HOME": str(home)}, stdout=log, stderr=subprocess.STDOUT
        )
        stack.callback(_stop, process)
        url = f"http://127.0.0.1:{port}"
        while True:
            if process.poll() is not None or time.perf_counter() - started_at > timeout_seconds:
                raise RuntimeError(f"the service did not start:\n{(home / 'serve.log').read_text()[-4000:]}")
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/v1/health", timeout=1.0).status_code == 200:
                    break
            time.sleep(0.02)
        key = json.loads((home / "local.json").read_text())["api_key"]
        yield Service(url, key, home, process, started_at)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def machine() -> dict[str, Any]:
    """Processor and its present speed, cores, memory, Python and the versions that matter."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model
        )
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "million_additions_per_second": round(_additions_per_second() / 1e6, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def _additions_per_second(additions: int = 1_000_000) -> float:
    """How fast one core runs plain Python now; the same processor may be far slower on another day."""
    fastest = math.inf
    for _ in range(3):
        began, total = time.process_time(), 0
        for number in range(additions):
            total += number
        fastest = min(fastest, time.process_time() - began)
    return additions / fastest


def commit_of(folder: Path) -> str:
    """Return the short name of a checkout's commit; empty if it is none."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=folder
    ).stdout.strip()


def write_result(
    name: str,
    figures: list[Figure],
    details: dict[str, Any],
    *,
    command: str | None = None,
    folder: Path = RESULTS,
) -> list[Figure]:
    """Write `benchmarks/results/<name>.json` and return the figures.

    Args:
        name: The benchmark.
        figures: What was measured.
        details: Anything else that is worth keeping, as JSON values.
        command: Repeats the measurement; None means `python -m benchmarks NAME`.
        folder: Where results are kept.
    """
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(
        json.dumps(
            {
                "name": name,
                "command": command or f"python -m benchmarks {name}",
                "date": time.strftime("%Y-%m-%d"),
                "commit": commit_of(RESULTS.parent),
                "machine": machine(),
                "figures": [asdict(figure) for figure in figures],
                "details": details,
            },
            indent=1,
        )
        + "\n"
    )
    return figures
