"""The program of a child process that answers one question and ends; foreign code may run in between."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from backend.processes.children import die_with_parent, stand_back


@contextmanager
def one_question() -> Iterator[tuple[dict[str, Any], TextIO]]:
    """Yield the JSON object of the standard input and where the answers go; the process ends with the block.

    The answers are the standard output as it was: what is printed from now on goes to the error stream.
    """
    die_with_parent()
    stand_back()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with answers:
        yield json.load(sys.stdin), answers
    # Not by returning: a thread of an environment could keep the process, and who asked, waiting.
    os._exit(0)
