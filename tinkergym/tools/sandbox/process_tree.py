"""The total memory of everything that sandboxed code started. Part of the launcher: imports little.

The kernel limits only the address space of a single process, and control groups need rights that a launcher
does not have. So as soon as there is more than one process, the launcher adds up their actual memory.
"""

from __future__ import annotations

import os

_PAGE = os.sysconf("SC_PAGE_SIZE")
_KERNEL = 0
"""The parent of processes whose parent is not visible from here."""


class ProcessTree:
    """A process and all that it started, seen through a file descriptor of `/proc`.

    The descriptor is opened before the launcher enters its namespaces, in which there is no `/proc`. Orphaned
    processes become children of the first one, which is init in its namespace.
    """

    def __init__(self, proc: int, first: int) -> None:
        self._proc, self._first = proc, first
        self._members = {first}
        self._others = {_KERNEL}

    def used_bytes(self) -> int:
        """Return the memory of all processes, shared pages counted once; 0 while there is only the first.

        For a single process the kernel's limit is exact.
        """
        present = {int(name) for name in os.listdir(self._proc) if name.isdigit()}  # noqa: PTH208
        self._members &= present
        self._others &= present | {_KERNEL}
        # Only new processes must be checked; a parent may come after its child in the list.
        new = {pid: self._parent(pid) for pid in present - self._members - self._others}
        for known in (self._members, self._others):
            while found := {pid for pid, parent in new.items() if parent in known}:
                known |= found  # noqa: PLW2901 - adds to the set itself
                for pid in found:
                    del new[pid]
        # The parents of the rest are not in the list yet: both are checked again.
        if self._members <= {self._first}:
            return 0
        return sum(self._used(pid) for pid in self._members)

    def _parent(self, pid: int) -> int | None:
        stat = self._read(f"{pid}/stat").rpartition(")")[2].split()
        return int(stat[1]) if len(stat) > 1 else None

    def _used(self, pid: int) -> int:
        """Return a process's share of the memory; if unavailable, all that it has in memory."""
        lines = self._read(f"{pid}/smaps_rollup").splitlines()
        sizes = [line.split() for line in lines if line.startswith(("Pss:", "SwapPss:"))]
        if sizes:
            return 1024 * sum(int(size[1]) for size in sizes)
        pages = self._read(f"{pid}/statm").split()
        return int(pages[1]) * _PAGE if pages else 0

    def _read(self, path: str) -> str:
        try:
            file = os.open(path, os.O_RDONLY, dir_fd=self._proc)
        except OSError:
            return ""  # It has ended, or may not be read.
        try:
            return os.read(file, 8192).decode("utf-8", "replace")
        except OSError:
            return ""
        finally:
            os.close(file)
