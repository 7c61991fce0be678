"""The program of a child process that handles one request and ends; foreign code may run in between."""

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

    Responses go to the original standard output; anything printed from now on goes to stderr.
    """
    die_with_parent()
    stand_back()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with answers:
        yield json.load(sys.stdin), answers
    # Not by returning: a thread of an environment could keep the process alive and the caller waiting.
    os._exit(0)
