"""The memory of processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import psutil


def resident_bytes(groups: Mapping[str, Iterable[int]]) -> dict[str, int]:
    """Return the memory of the processes of each group, with all their children.

    Shared memory, such as libraries, counts for each of them.

    Args:
        groups: Process ids by the group's name; missing ones count as 0.
    """
    group_of = {pid: name for name, pids in groups.items() for pid in pids}
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    # One scan of all processes: psutil would scan again for the children of each.
    for process in psutil.process_iter(["ppid", "memory_info"]):
        memory = process.info["memory_info"]
        if memory is not None:
            parents[process.pid], resident[process.pid] = process.info["ppid"], memory.rss
    taken = dict.fromkeys(groups, 0)
    for pid, size in resident.items():
        above: int | None = pid
        while above is not None and above not in group_of:
            above = parents.get(above)
        if above is not None:
            taken[group_of[above]] += size
    return taken
