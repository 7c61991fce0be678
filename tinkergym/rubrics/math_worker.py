"""Compares answers in its own process, which may be killed; `mathematics.py` starts it as a script.

Input is one JSON line, `[answer, gold, cpu_seconds]`; output is one, `{"equal": ...}`. A comparison that
exceeds its time ends the process: nothing less stops arithmetic on a number with a billion digits.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import resource
import signal
import sys
from typing import Any

from math_verify import parse, verify

_MEMORY_BYTES = 4 << 30
_RECURSION = 3_000
_DELIMITED = re.compile(r"\$|\\boxed|\\\(|\\\[|\\begin\{")


def readings(text: str) -> list[Any]:
    """Return what math-verify parses from a text; without signals, which need a main thread."""
    text = text.strip()
    if _DELIMITED.search(text):
        return list(parse(text, parsing_timeout=None))
    found = list(parse(f"${text}$", parsing_timeout=None))
    # A sentence such as "The answer is 5" is not a formula, but may end with one.
    return found if "\\" in text else [*found, *parse(text, parsing_timeout=None)]


def compare(answer: str, gold: str) -> dict[str, Any]:
    """Compare two texts as mathematics."""
    expected = readings(gold)
    if not any(not isinstance(reading, str) for reading in expected):
        # Words and letters have no value, so they are compared as text.
        return {"equal": False} if gold.strip() else {"bad_gold": "it is empty"}
    return {"equal": any(verify(expected, [found], timeout_seconds=None) for found in readings(answer))}


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent decides when to end.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    sys.setrecursionlimit(_RECURSION)
    logging.disable()
    # What is loaded at first use would count against the first answer's time.
    readings("1")
    compare("1", "1")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        answer, gold, seconds = json.loads(line)
        # Counts time on a core, so that a busy machine makes no answer wrong; its signal ends the process.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            result = compare(answer, gold)
        except (MemoryError, RecursionError):
            result = {"equal": False}
        except Exception as error:  # Foreign code, with arbitrary input from a model.
            result = {"equal": False, "error": f"{type(error).__name__}: {error}"[:500]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
