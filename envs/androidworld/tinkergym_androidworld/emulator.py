"""AndroidWorld on an emulator; the only file that imports `android_world`.

One emulator serves one environment at a time. Environments in one process that use the same emulator share
its connection and take turns; other processes are refused.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import socket
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tinkergym.errors import (
    EnvironmentBusyError,
    EnvironmentInfrastructureError,
    InvalidEnvironmentError,
    InvalidRequestError,
)
from tinkergym_androidworld.environment import PhoneEnv
from tinkergym_androidworld.phone import Device, PhoneTask

try:
    import fcntl
except ImportError:  # Windows: there is no protection against a second process
    fcntl = None  # type: ignore[assignment]

ADB_VARIABLE = "TINKERGYM_ADB_PATH"
"""Environment variable with the path of adb. Not an argument, because jobs may come from other users."""

_CONSOLE_PORTS = range(5554, 5684, 2)
"""Ports that emulators use."""
_GRPC_OFFSET = 3000
"""Difference between an emulator's console port and its usual gRPC port: 8554 for the first one."""
_GRPC_PORTS = range(_CONSOLE_PORTS.start + _GRPC_OFFSET, _CONSOLE_PORTS.stop + _GRPC_OFFSET)
_REACH_SECONDS = 3.0
_START = "start one with emulator -avd AndroidWorldAvd -no-snapshot -port {console} -grpc {grpc}"


class Emulator:
    """AndroidWorld's tasks on a running emulator."""

    def __init__(self, *, family: str, console_port: int, grpc_port: int | None, wait_seconds: float) -> None:
        """Check that everything is available; nothing is connected yet.

        Raises:
            InvalidEnvironmentError: AndroidWorld is not installed, or no emulator responds.
            InvalidRequestError: AndroidWorld has no such family of tasks.
        """
        if importlib.util.find_spec("android_world") is None:
            raise InvalidEnvironmentError(
                "AndroidWorld is not installed",
                hint="install android_world from its repository, as envs/androidworld/README.md says",
                field="environment",
            )
        _refuse_port("console_port", console_port, _CONSOLE_PORTS)
        grpc_port = console_port + _GRPC_OFFSET if grpc_port is None else grpc_port
        _refuse_port("grpc_port", grpc_port, _GRPC_PORTS)
        for name, port in (("console_port", console_port), ("grpc_port", grpc_port)):
            if not _responds(port):
                raise InvalidEnvironmentError(
                    f"no Android emulator responds on port {port} of this machine",
                    hint=_START.format(console=console_port, grpc=grpc_port),
                    field=name,
                )
        self.name = f"the emulator on console port {console_port}"
        self._line = _line_to(console_port, grpc_port)
        self._wait_seconds = wait_seconds
        registry = importlib.import_module("android_world.registry").TaskRegistry()
        try:
            self._tasks: Mapping[str, Any] = registry.get_registry(family)
        except ValueError as error:
            raise InvalidRequestError(
                f"AndroidWorld has no family {family!r}: {error}",
                hint="android_world contains all of them, android those without questions",
                field="family",
            ) from None
        self._action = importlib.import_module("android_world.env.json_action").JSONAction
        self._held = False

    def task_names(self) -> Sequence[str]:
        """Return the kinds of task of the family."""
        return list(self._tasks)

    def task(self, name: str, seed: int) -> PhoneTask:
        """Return a task, created like in AndroidWorld's `create_suite`."""
        kind = self._tasks[name]
        kind.set_device_time(self._line.device)
        # AndroidWorld draws from the global generator. The emulator is reserved for this environment
        # meanwhile.
        random.seed(seed)
        params = kind.generate_random_params()
        params["seed"] = seed
        task: PhoneTask = kind(params)
        return task

    def action(self, fields: Mapping[str, Any]) -> Any:
        """Return AndroidWorld's `JSONAction`."""
        return self._action(**fields)

    def take(self) -> Device:
        """Wait for the emulator and connect to it, unless this process is already connected.

        Raises:
            EnvironmentBusyError: Another environment is using it.
            EnvironmentInfrastructureError: AndroidWorld cannot connect to it.
        """
        device = self._line.take(self._wait_seconds)
        self._held = True
        return device

    def give_back(self, *, broken: bool = False) -> None:
        """Release it for other environments of this process."""
        if self._held:
            self._held = False
            self._line.give_back(broken=broken)

    def close(self) -> None:
        """Release it; the connection stays for the process's other environments."""
        self.give_back()


class _Line:
    """This process's connection to one emulator. Its lock determines whose turn it is."""

    def __init__(self, console_port: int, grpc_port: int) -> None:
        self._port, self.grpc_port = console_port, grpc_port
        self._turn = threading.Lock()
        self._claim: IO[bytes] | None = None
        self.device: Device | None = None

    def take(self, wait_seconds: float) -> Device:
        if not self._turn.acquire(timeout=wait_seconds):
            raise EnvironmentBusyError(
                f"another environment in this process is using the emulator on console port {self._port}",
                hint="play fewer episodes at once, raise wait_seconds, or start an emulator for each "
                "environment",
            )
        try:
            self._claim = self._claim or _claimed(self._port)
            self.device = self.device or self._connected()
        except BaseException:
            self._turn.release()
            raise
        return self.device

    def give_back(self, *, broken: bool) -> None:
        if broken and self.device is not None:
            with suppress(Exception):  # it is broken
                self.device.close()
            self.device = None
        self._turn.release()

    def _connected(self) -> Device:
        launcher = importlib.import_module("android_world.env.env_launcher")
        adb_path = os.environ.get(ADB_VARIABLE, "")
        arguments = {"adb_path": adb_path} if adb_path else {}
        try:
            device: Device = launcher.load_and_setup_env(
                console_port=self._port, grpc_port=self.grpc_port, emulator_setup=False, **arguments
            )
        except Exception as error:  # AndroidWorld and adb raise arbitrary errors
            raise EnvironmentInfrastructureError(
                f"AndroidWorld cannot connect to the emulator on console port {self._port}: {error}",
                hint=f"check whether `adb devices` lists it; set {ADB_VARIABLE} to the path of adb",
            ) from error
        return device


_lines: dict[int, _Line] = {}
_lines_lock = threading.Lock()


def _line_to(console_port: int, grpc_port: int) -> _Line:
    """Return this process's connection to an emulator.

    Raises:
        InvalidRequestError: The process reaches it by another gRPC port.
    """
    with _lines_lock:
        line = _lines.setdefault(console_port, _Line(console_port, grpc_port))
    if line.grpc_port != grpc_port:
        raise InvalidRequestError(
            f"this process already uses the emulator on console port {console_port} by port "
            f"{line.grpc_port}, not {grpc_port}",
            hint="an emulator has one gRPC port",
            field="grpc_port",
        )
    return line


def _claimed(console_port: int) -> IO[bytes] | None:
    """Keep other processes away from an emulator while the returned file is open.

    Raises:
        EnvironmentBusyError: Another process is using it.
    """
    if fcntl is None:
        return None
    name = f"tinkergym-androidworld-{os.getuid()}-{console_port}.lock"
    file = (Path(tempfile.gettempdir()) / name).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise EnvironmentBusyError(
            f"another process is using the emulator on console port {console_port}",
            hint="an emulator serves only one process; start another one on other ports",
        ) from None
    return file


def _refuse_port(name: str, port: int, known: range) -> None:
    if not isinstance(port, int) or port not in known:
        kind = "even" if known.step == 2 else "any"
        raise InvalidRequestError(
            f"{port!r} is not a port of an emulator",
            hint=f"{kind} number from {known[0]} to {known[-1]}",
            field=name,
        )


def _responds(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=_REACH_SECONDS).close()
    except OSError:
        return False
    return True


class AndroidWorldEnv(PhoneEnv):
    """Do a task of AndroidWorld on an Android emulator on this machine."""

    metadata: dict[str, Any] = {  # noqa: RUF012 - Gymnasium declares it so
        **PhoneEnv.metadata,
        "not_replayable": "an emulator's clock and its apps go on by themselves",
    }

    def __init__(
        self,
        *,
        family: str = "android_world",
        console_port: int = 5554,
        grpc_port: int | None = None,
        wait_seconds: float = 600.0,
        **settings: Any,
    ) -> None:
        """Choose the emulator and the tasks.

        Args:
            family: AndroidWorld's family of tasks.
            console_port: The emulator's console port, as shown by `adb devices`.
            grpc_port: The emulator's `-grpc` port; None is `console_port + 3000`.
            wait_seconds: How long `reset` waits while another environment of this process uses the emulator.
            settings: Arguments of `PhoneEnv`.

        Raises:
            InvalidEnvironmentError: AndroidWorld is not installed, or no emulator responds.
        """
        phone = Emulator(
            family=family,
            console_port=console_port,
            grpc_port=grpc_port,
            wait_seconds=wait_seconds,
        )
        super().__init__(phone, **settings)
