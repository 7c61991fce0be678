"""Several machines on one: each host has its own network, process ids, name, /tmp and /dev/shm.

What works here does not lean on one machine: a path, a process id or a loopback address of one host means
nothing on another. The file system outside of /tmp is the same, as if all ran the same image. Needs root.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from backend.scheduler import ray_patience
from backend.workers.device_choice import PRETENDED
from tests.leftovers import belonging_to

CHECKOUT = Path(__file__).parents[3]
TOKEN = secrets.token_hex(32)
_FIRST_HOST = 10
_PATIENCE_SECONDS = 240.0
_KEEP = """
set -e
mount --make-rprivate /; mount -t proc proc /proc; hostname "$NAME"
mount --bind /tmp /mnt
for d in /tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $d; done
for d in $READ_ONLY $SHARED; do
  case $d in /tmp/*) mkdir -p $d; mount --bind /mnt/${d#/tmp/} $d;; esac
done
for d in $READ_ONLY; do case $d in /tmp/*) mount -o remount,bind,ro $d;; esac; done
umount /mnt; mkdir -m 700 /tmp/home; ip link set lo up
touch "/run/$NAME.ready"; exec sleep infinity
"""


def missing() -> str:
    """Return why hosts cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "namespaces of several hosts need root"
    tools = [tool for tool in ("ip", "nsenter", "unshare", "mount") if shutil.which(tool) is None]
    if tools:
        return f"not installed: {', '.join(tools)}"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return "" if done.returncode == 0 else "this machine does not allow new namespaces"


class Hosts:
    """A private network of hosts; host i has the address `address(i)`."""

    def __init__(self, count: int, shared: Path) -> None:
        """`shared` is the one folder that all of them see; below /tmp."""
        self.shared, self.count = shared, count
        self._tag = f"t{secrets.token_hex(2)}"
        self._net = f"10.77.{secrets.randbelow(200) + 20}"
        self._keepers: list[subprocess.Popen[bytes]] = []
        self._inside: dict[int, int] = {}
        self.started: list[subprocess.Popen[Any]] = []
        self._bridge()
        for number in range(count):
            self._add(number)

    @property
    def outside(self) -> str:
        """The address of the machine below the hosts."""
        return f"{self._net}.1"

    def address(self, number: int) -> str:
        """Return a host's address."""
        return f"{self._net}.{_FIRST_HOST + number}"

    def _bridge(self) -> None:
        _run("ip", "link", "add", self._tag, "type", "bridge")
        _run("ip", "addr", "add", f"{self.outside}/24", "dev", self._tag)
        _run("ip", "link", "set", self._tag, "up")

    def _add(self, number: int) -> None:
        name = f"{self._tag}h{number}"
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", f"{name}v", "master", self._tag, "up")
        for words in (
            ("addr", "add", f"{self.address(number)}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
        ):
            _run("ip", "-n", name, *words)
        _run("ip", "-n", name, "route", "add", "default", "via", self.outside)
        ready = Path(f"/run/{name}.ready")
        environment = {
            **os.environ,
            "NAME": name,
            "READ_ONLY": " ".join(str(folder) for folder in _read_only()),
            "SHARED": str(self.shared),
        }
        keeper = ["ip", "netns", "exec", name, "unshare", "--mount", "--pid", "--uts", "--ipc", "--fork"]
        keeper += ["--kill-child", "bash", "-c", _KEEP]
        output = (self.shared / f"{name}.log").open("wb")
        self._keepers.append(
            subprocess.Popen(keeper, env=environment, stdout=output, stderr=output, start_new_session=True)
        )
        output.close()
        until(ready.exists, f"host {number}")
        ready.unlink()
        inside = until(lambda: _descendant(self._keepers[-1].pid, "sleep"), f"host {number}")
        self._inside[number] = inside

    def command(self, number: int, *words: str, **environment: str) -> list[str]:
        """Return a command line that runs a command on a host."""
        variables = {
            "HOME": "/tmp/home",
            "TMPDIR": "/tmp",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            **environment,
        }
        enter = [
            "nsenter",
            "--target",
            str(self._inside[number]),
            "--mount",
            "--net",
            "--pid",
            "--uts",
            "--ipc",
            "--",
        ]
        return [*enter, "env", *(f"{name}={value}" for name, value in variables.items()), *words]

    def run(self, number: int, *words: str, seconds: float = _PATIENCE_SECONDS, **environment: str) -> str:
        """Run a command on a host and return its output."""
        done = subprocess.run(
            self.command(number, *words, **environment),
            capture_output=True, text=True, timeout=seconds, check=False, cwd=CHECKOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"{words} on host {number}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
        return done.stdout

    def read(self, number: int, file: str) -> str:
        """Return the content of a host's file; empty if there is none."""
        done = subprocess.run(self.command(number, "cat", file), capture_output=True, text=True, check=False)
        return done.stdout

    def start(self, number: int, *words: str, **environment: str) -> subprocess.Popen[Any]:
        """Start a command on a host; its output goes to `log(number)`."""
        # It serves the tests after this one, too.
        with belonging_to("module"), self.log(number).open("ab") as output:
            process = subprocess.Popen(
                self.command(number, *words, **environment),
                stdout=output, stderr=output, start_new_session=True, cwd=CHECKOUT,
            )  # fmt: skip
        self.started.append(process)
        return process

    def log(self, number: int) -> Path:
        """Return the file with a host's output."""
        return self.shared / f"host-{number}.log"

    def start_node(
        self, number: int, *, head: int | None = 0, cpus: int = 1, gpus: int = 0, **environment: str
    ) -> None:
        """Start a node of a Ray cluster; `head=None` makes it the head. Its GPUs are pretended."""
        where = ["--head", "--port=6379"] if head is None else [f"--address={self.address(head)}:6379"]
        options = [f"--node-ip-address={self.address(number)}", f"--num-cpus={cpus}", "--disable-usage-stats"]
        options += ["--include-dashboard=false"] if head is None else []
        options += [f"--num-gpus={gpus}"] if gpus else []
        pretended = {PRETENDED: "1"} if gpus else {}
        quick = {f"RAY_health_check_{name}_ms": "1000" for name in ("initial_delay", "period", "timeout")}
        quick["RAY_health_check_failure_threshold"] = "4"
        # A busy machine starts a node late, or not at the first attempt.
        patience = {k: v for k, v in ray_patience.SETTINGS.items() if "health_check" not in k}
        for attempt in range(3):
            try:
                self.run(
                    number, sys.executable, "-m", "ray.scripts.scripts", "start", *where, *options,
                    "--object-store-memory=80000000", **quick, **patience, **pretended, **environment,
                )  # fmt: skip
                return
            except AssertionError:
                if attempt == 2:
                    raise
                self.stop_node(number)

    def stop_node(self, number: int) -> None:
        """Kill all processes of Ray on a host."""
        with suppress(AssertionError):
            self.run(number, sys.executable, "-m", "ray.scripts.scripts", "stop", "--force")

    def kill(self, number: int, name: str) -> None:
        """Kill all processes of this name on a host, if there are any."""
        subprocess.run(self.command(number, "pkill", "-KILL", "-x", name), check=False)

    def cut(self, number: int) -> None:
        """Take a host's network away."""
        _run("ip", "link", "set", f"{self._tag}h{number}v", "down")

    def join(self, number: int) -> None:
        """Give it back."""
        _run("ip", "link", "set", f"{self._tag}h{number}v", "up")

    def end(self) -> None:
        """End everything on all hosts, and the hosts."""
        for process in (*self.started, *self._keepers):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=120)
        for number in self._inside:
            _run("ip", "netns", "del", f"{self._tag}h{number}")
        _run("ip", "link", "del", self._tag)


@contextmanager
def hosts(count: int, shared: Path) -> Iterator[Hosts]:
    """Make hosts until the block ends."""
    made = Hosts(count, shared)
    try:
        yield made
    finally:
        made.end()


def until(happened: Any, what: str | Callable[[], str], seconds: float = _PATIENCE_SECONDS) -> Any:
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < deadline, f"waited in vain for {what() if callable(what) else what}"
        time.sleep(0.1)
    return found


def _read_only() -> Sequence[Path]:
    """Return the folders of this checkout and its Python that lie below /tmp."""
    wanted = {CHECKOUT, Path(sys.prefix), *(Path(entry) for entry in sys.path if entry)}
    below = sorted(path for path in wanted if path.is_dir() and path.is_relative_to("/tmp"))
    return [
        path for path in below if not any(path != other and path.is_relative_to(other) for other in below)
    ]


def _descendant(pid: int, name: str) -> int:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if Path(f"/proc/{child}/comm").read_text().strip() == name:
            return int(child)
        if found := _descendant(int(child), name):
            return found
    return 0


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
