"""What processes a test leaves behind."""

import multiprocessing
import os
from pathlib import Path

import pytest


def children(parent=None):
    """The processes that one, this one by default, started and has not waited for, zombies included."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            started_by = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            command = (process / "cmdline").read_text()
        except OSError:
            continue
        # multiprocessing keeps one helper of its own for all processes.
        if started_by == (parent or os.getpid()) and "resource_tracker" not in command:
            found.add(int(process.name))
    return found


PATIENCE_SECONDS = 120.0
"""How long a killed process may take to end; at the lowest priority it waits for its turn."""


@pytest.fixture(autouse=True)
def no_process_is_left_behind():
    before = children()
    yield
    for child in multiprocessing.active_children():
        if child.pid not in before:
            child.join(PATIENCE_SECONDS)
    assert children() <= before
