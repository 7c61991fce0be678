"""Runs Python code in a process with few rights; `python_run.py` starts it as a script.

This process is trusted. It sets up the isolation, forks the process that runs the code, kills it when its
time is over or its caller is gone, and reports the result on file descriptor `report`. It imports nothing of
tinkergym and, except for ctypes, only small modules, because it starts once per call.
"""

from __future__ import annotations

import ast
import ctypes
import json
import linecache
import os
import resource
import select
import signal
import struct
import sys
import time
import traceback
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinkergym.tools.sandbox.process_tree import ProcessTree
else:  # Run as a script, without its own folder on the import path.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - as below
    from process_tree import ProcessTree

    del sys.path[0]

NOBODY = 65534
# Python has no names for these: the numbers of calls and flags in Linux's headers.
_NEW = {"mount": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000}
_NEW |= {"network": 0x40000000}
_ALL = sum(_NEW.values())
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE, _READ_ONLY = -100, 0x8000, 1
_NO_NEW_PRIVILEGES, _PARENT_DEATH_SIGNAL = 38, 1
_SECCOMP, _FILTER = 22, 2
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_MEMORY_OF_NO_PROCESS = {
    "x86_64": (29, 64, 68, 240, 319, 321, 425, 447),
    "aarch64": (194, 190, 186, 180, 279, 280, 425, 447),
}
"""shmget, semget, msgget, mq_open, memfd_create, bpf, io_uring_setup, memfd_secret: their memory belongs to
no address space, so no limit counts it."""
_MMAP = {"x86_64": 9, "aarch64": 222}
_SHARED_AND_ANONYMOUS = 0x21
"""Such a mapping keeps its pages when a process unmaps them, and then no process appears to use them."""
_FIRST_X32_CALL = 0x40000000
"""From here on x86_64 has the calls of x32, under which the filter would not know them."""
_MOST_FILES = 10_000
_LOOK_SECONDS = 0.02
"""Interval between checks of the memory of all processes."""
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache")
# Not /dev/zero: mapped and shared, it is also memory of no process.
_DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")

Settings = dict[str, Any]


# --- walls: Linux namespaces ---


class Kernel:
    """System calls without a Python wrapper."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._machine = os.uname().machine

    def _done(self, result: int, what: str) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")

    def unshare(self, flags: int) -> None:
        """Enter new namespaces."""
        self._done(self._libc.unshare(flags), "unshare")

    def mount(self, source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
        """Mount a file system, or bind a path."""
        texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
        result = self._libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
        self._done(result, f"mount {target}")

    def make_read_only(self, path: str) -> None:
        """Make a mount and all below it read-only."""
        attributes = struct.pack("QQQQ", _READ_ONLY, 0, 0, 0)
        arguments = (_AT_FDCWD, path.encode(), _AT_RECURSIVE, attributes, ctypes.c_size_t(len(attributes)))
        self._done(self._libc.syscall(_MOUNT_SETATTR, *arguments), "mount_setattr")

    def enter_root(self, path: str) -> None:
        """Make a mount the root, and detach the old one."""
        os.chdir(path)
        # With one place for both, the old root lies over the new one and needs no folder (pivot_root(2)).
        self._done(self._libc.syscall(_PIVOT_ROOT[self._machine], b".", b"."), "pivot_root")
        self._done(self._libc.umount2(b".", _MNT_DETACH), "umount")
        os.chdir("/")

    def give_up_privileges(self) -> None:
        """Drop all capabilities permanently."""
        self._done(self._libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
        # Of this process (0). The zeros are its three sets of capabilities, in two halves.
        version_3 = struct.pack("Ii", 0x20080522, 0)
        self._done(self._libc.syscall(_CAPSET[self._machine], version_3, bytes(24)), "capset")

    def refuse_hidden_memory(self) -> None:
        """Make system calls that allocate memory outside any address space fail with EPERM."""
        calls = _MEMORY_OF_NO_PROCESS[self._machine]
        # BPF's codes (linux/bpf_common.h) on a register of 32 bits. A step is the code, how many steps to
        # skip if a comparison holds and if it does not, and a number.
        load, equal, at_least, and_, end = 0x20, 0x15, 0x35, 0x54, 0x06
        refuse = len(calls) + 9  # The last instruction; a jump counts from the next one.
        # The last numbers of `load` are places in the kernel's struct of a call: its number at 0, the
        # architecture at 4, the address that it came from at 8, and six arguments of 8 bytes from 16 on.
        steps = [
            (load, 0, 0, 4),  # The architecture that the system call numbers belong to.
            (equal, 0, refuse - 2, _MACHINES[self._machine]),
            (load, 0, 0, 0),  # the number
            (at_least, refuse - 4, 0, _FIRST_X32_CALL),
            *((equal, refuse - 5 - place, 0, call) for place, call in enumerate(calls)),
            (equal, 0, 3, _MMAP[self._machine]),
            (load, 0, 0, 16 + 3 * 8),  # The flags, in the lower half of the fourth argument.
            (and_, 0, 0, _SHARED_AND_ANONYMOUS),
            (equal, 1, 0, _SHARED_AND_ANONYMOUS),
            (end, 0, 0, 0x7FFF0000),  # allow
            (end, 0, 0, 0x00050001),  # EPERM
        ]
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
        header = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
        self._done(self._libc.prctl(_SECCOMP, _FILTER, header, 0, 0), "prctl")


def build_walls(kernel: Kernel, settings: Settings) -> bool:
    """Enter namespaces without network, other processes or other files; return whether this is real root."""
    user, group = os.geteuid(), os.getegid()
    is_root = user == 0
    if is_root:
        try:
            # Without a user namespace: what runs as root's own user in one may still change root's files.
            kernel.unshare(_ALL & ~_NEW["user"])
        except PermissionError:  # Root without its powers, as in many containers.
            is_root = False
    if not is_root:
        kernel.unshare(_ALL)
        for name, text in (
            # Linux demands this one first of a process without rights.
            ("setgroups", "deny"),
            ("uid_map", f"1000 {user} 1"),
            ("gid_map", f"1000 {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123 - no pathlib here
                file.write(text)
    root = settings["folder"]
    # Otherwise the mounts below could appear outside, too.
    kernel.mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", _MS_NOSUID, "size=1m,mode=755")
    shown: list[str] = []
    for path in [*_SYSTEM, *settings["paths"], *_DEVICES]:
        if os.path.lexists(path) and not any(f"{path}/".startswith(f"{parent}/") for parent in shown):
            shown.append(path)
    # Paths in /tmp, such as a virtual environment, must wait for the sandbox's own /tmp.
    inside = [path for path in shown if path.startswith("/tmp/")]
    for path in shown:
        if path not in inside:
            _show(kernel, path, root)
    os.mkdir(f"{root}/tmp")  # noqa: PTH102 - as above
    kernel.make_read_only(root)
    # Empty files have no size, but each takes a kilobyte of kernel memory.
    options = f"size={settings['file_bytes']},nr_inodes={_MOST_FILES},mode=777"
    kernel.mount("tmpfs", f"{root}/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    for path in inside:
        _show(kernel, path, root)
        kernel.make_read_only(root + path)
    kernel.enter_root(root)
    return is_root


def _show(kernel: Kernel, path: str, root: str) -> None:
    target = root + path
    os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - as above
    if os.path.islink(path):  # noqa: PTH114 - as above
        os.symlink(os.readlink(path), target)  # noqa: PTH115, PTH211 - as above
        return
    if os.path.isdir(path):  # noqa: PTH112 - as above
        os.mkdir(target)  # noqa: PTH102 - as above
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    kernel.mount(path, target, None, _MS_BIND | _MS_REC)


# --- walls where there are no namespaces: Python's audit hook. It stops accidents, not attackers ---

_REFUSED: tuple[str, ...] = ("socket.", "ctypes.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn")
_REFUSED += ("os.spawn", "os.system", "os.kill", "pty.", "syslog.", "webbrowser.", "mmap.")
_CHANGES: tuple[str, ...] = ("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename")
_CHANGES += ("os.rmdir", "os.symlink", "os.truncate", "os.utime", "shutil.")


def refuse_by_audit(folder: str) -> None:
    """Refuse sockets, programs and file changes outside the folder. Stops accidents, not attacks."""
    # With the separator, a folder whose name only begins like this one is outside.
    inside = os.path.realpath(folder) + os.sep

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_REFUSED):
            raise PermissionError(f"{event} is not allowed here")
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if writes or event.startswith(_CHANGES):
            for path in arguments[: 2 if event.startswith(("os.rename", "os.link")) else 1]:
                # A number names a file that is open already, and was checked then.
                text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
                if not (os.path.realpath(text) + os.sep).startswith(inside):
                    raise PermissionError(f"{text!r} is outside the working folder")

    sys.addaudithook(check)


# --- the process that runs the code ---


def limit(settings: Settings) -> None:
    """Set the limits that the kernel enforces."""
    memory, size = settings["memory_bytes"], settings["file_bytes"]
    for what, wanted in (
        (resource.RLIMIT_CPU, settings["cpu_seconds"]),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, size),
        (resource.RLIMIT_NPROC, settings["processes"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        if wanted is not None:
            hard = resource.getrlimit(what)[1]
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(what, (most, most))


def run(code: str) -> int:
    """Run the code as `__main__`, show the value of a last expression, and return the exit status."""
    linecache.cache["<code>"] = (len(code), None, code.splitlines(keepends=True), "<code>")
    names: dict[str, Any] = {"__name__": "__main__"}
    status = 0
    try:
        tree = ast.parse(code, "<code>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<code>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
            if value is not None:
                print(repr(value))
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        status = 1
        sys.stdout.flush()
        traceback.print_exception(type(error), error, _own_frames(error.__traceback__), limit=20)
    sys.stdout.flush()
    return status & 0xFF


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename != "<code>":
        frames = frames.tb_next
    return frames


def die_with_parent() -> None:
    """Ask Linux to kill this process if the launcher is killed and can no longer do it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def confined(kernel: Kernel | None, settings: Settings, code: str, is_root: bool, ready: int) -> int:
    """Drop all rights, report it on file descriptor `ready`, then run the code."""
    os.setsid()
    os.dup2(ready, 3)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(1, 2)
    # Among the others is a descriptor of the machine's /proc, which leads out of the walls.
    os.closerange(4, 4096)
    os.chdir("/tmp" if kernel is not None else settings["folder"])
    if kernel is not None:
        if is_root:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            # The kernel counts a user's processes per namespace, so other sandboxes are not counted with
            # ours.
            try:
                kernel.unshare(_NEW["user"])
            except OSError:
                settings["processes"] = None
        limit(settings)
        kernel.give_up_privileges()
        # Only now: of a process without rights, Linux accepts a filter only once it can gain none.
        kernel.refuse_hidden_memory()
    else:
        # Without a namespace all processes of the user count; the audit hook refuses new ones.
        settings["processes"] = None
        limit(settings)
    # Only now: a change of the user makes Linux forget it.
    die_with_parent()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.write(3, b"1")
    os.close(3)
    if kernel is None:
        # Last, because it also refuses what the lines above need.
        refuse_by_audit(settings["folder"])
    return run(code)


# --- the launcher ---


def main() -> None:
    """Read the settings and the code from standard input, run it, report."""
    os.umask(0o022)  # The code may run as another user, who must reach what is mounted.
    header = sys.stdin.buffer.readline()
    settings: Settings = json.loads(header)
    code = sys.stdin.buffer.read(settings["code_bytes"]).decode()
    report: dict[str, Any] = {"isolation": "limits", "reason": ""}
    kernel, is_root, proc = None, False, None
    if settings["isolation"] != "limits":
        try:
            kernel = Kernel()
            proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
            is_root = build_walls(kernel, settings)
            report["isolation"] = "namespaces"
        except (OSError, AttributeError, KeyError) as error:
            report["reason"] = f"{type(error).__name__}: {error}"
            # Half-built isolation is not undone: the caller starts again without it.
            tell(settings, {**report, "status": "unavailable"})
            return
    ready, is_ready = os.pipe()
    os.set_blocking(ready, False)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # Through a pipe: `select` does not return for a signal alone, and the child may end before it waits.
    signal.signal(signal.SIGCHLD, _ignore)
    signal.set_wakeup_fd(writer)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        status = 1
        try:
            status = confined(kernel, settings, code, is_root, is_ready)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(status)
    # Without namespaces no process can be started, and the kernel's limit of one is exact.
    tree = ProcessTree(proc, child) if proc is not None else None
    report |= watch(child, reader, settings, tree)
    if kernel is None:
        kill(child)  # Processes it may have started; a namespace ends by itself.
    try:
        os.read(ready, 1)
    except BlockingIOError:  # The code never started.
        report["status"] = "failed"
    tell(settings, report)


def watch(child: int, child_signals: int, settings: Settings, tree: ProcessTree | None) -> dict[str, Any]:
    """Wait for the process and kill it when its time or memory is used up; return how it ended."""
    ends_at, ending = time.monotonic() + settings["wall_seconds"], "timeout"
    while (left := ends_at - time.monotonic()) > 0:
        # Standard input ends when the caller is gone.
        wait = left if tree is None else min(left, _LOOK_SECONDS)
        news, _, _ = select.select([0, child_signals], [], [], wait)
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            return _ending("exited", status, usage)
        if 0 in news:
            break
        if child_signals in news:
            os.read(child_signals, 64)
        if tree is not None and tree.used_bytes() > settings["memory_bytes"]:
            ending = "memory"
            break
    kill(child)
    _, status, usage = os.wait4(child, 0)
    return _ending(ending, status, usage)


def _ending(status: str, exit_status: int, usage: resource.struct_rusage) -> dict[str, Any]:
    code, seconds = os.waitstatus_to_exitcode(exit_status), usage.ru_utime + usage.ru_stime
    return {"status": status, "exit": code, "cpu_seconds": seconds}


def kill(child: int) -> None:
    """Kill the process and its group; in its own namespace, everything it started is killed with it."""
    # Until its `setsid` the process is in no group of its own.
    for end in (os.killpg, os.kill):
        try:
            end(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def tell(settings: Settings, report: dict[str, Any]) -> None:
    """Send the report."""
    os.write(settings["report"], json.dumps(report).encode())


def _ignore(number: int, frame: FrameType | None) -> None:
    """A handler that does nothing, for `set_wakeup_fd`."""


if __name__ == "__main__":
    main()
