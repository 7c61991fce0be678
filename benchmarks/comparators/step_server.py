"""A service of the checkout in the working directory, which trains a job for each line of its input.

Run by `benchmarks.against` with another checkout's Python: it may use only what that checkout has, too.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
from pathlib import Path

ADAPTERS = ("LoRA", "full parameters")
_WARM_UP = 3


def main() -> None:
    """Answer each line with the median seconds of a step."""
    sys.path[0] = str(Path.cwd())
    import tinkergym as tg
    from benchmarks.common import service
    from benchmarks.step_work import model_directory
    from benchmarks.versus_trl import train

    adapters = dict(zip(ADAPTERS, (tg.LoRA(rank=8, alpha=16.0), tg.FullParameters()), strict=True))
    with (
        model_directory() as model,
        service(None, f'preload=["{model}"]', timeout_seconds=300.0) as running,
        tg.Client(running.url, running.api_key) as client,
    ):
        for line in sys.stdin:
            job = json.loads(line)
            with contextlib.redirect_stdout(sys.stderr):
                seconds = train(client, model, adapters[job["adapter"]], steps=job["steps"])["step_seconds"]
            print(statistics.median(seconds[_WARM_UP:]), flush=True)


if __name__ == "__main__":
    main()
