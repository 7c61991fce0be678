"""A process may be on another machine: the scheduler reaches none by its number."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "backend" / "scheduler"
FORBIDDEN = re.compile(r"os\.kill|killpg|/proc/(?!self)|psutil")
OWN_CHILDREN = {"scheduler_host.py", "ray_start.py", "host_log.py"}
"""They start Ray on this machine, look at what they have started, and let it write to their log."""


def test_reaches_no_process_by_its_number():
    found = {path.name for path in FOLDER.glob("*.py") if FORBIDDEN.search(path.read_text("utf-8"))}
    assert found <= OWN_CHILDREN


def test_sends_no_number_of_a_process_to_another():
    for path in FOLDER.glob("*.py"):
        if path.name not in {"ray_ranks.py", *OWN_CHILDREN}:  # A rank's number appears in its end's message.
            assert "getpid" not in path.read_text("utf-8"), path.name
