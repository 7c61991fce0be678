"""The duration of `import tinkergym` in a new process, and the modules it must not load."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.common import Figure, write_result

PROGRAM = """
import sys, time
start = time.perf_counter()
import tinkergym
seconds = time.perf_counter() - start
print(seconds, *sorted({"torch", "httpx", "transformers", "ray"} & set(sys.modules)))
"""


def measure(runs: int = 11) -> list[Figure]:
    """Import in `runs` new processes; the first warms the file cache and does not count."""
    seconds, heavy = [], set[str]()
    for run in range(runs + 1):
        words = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
        ).stdout.split()
        heavy |= set(words[1:])
        if run:
            seconds.append(float(words[0]))
    median = statistics.median(seconds)
    brings = f"brings {', '.join(sorted(heavy))}" if heavy else "neither"
    figure = Figure(
        what="import tinkergym",
        asked="<= 0.5 s, no torch, no httpx",
        measured=f"{median:.2f} s (median of {runs}), {brings}",
        reached=median <= 0.5 and not heavy,
    )
    return write_result("import_time", [figure], {"seconds": seconds, "heavy_modules": sorted(heavy)})
