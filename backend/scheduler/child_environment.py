"""How processes below Ray compute and allocate."""

from __future__ import annotations

import os


def child_environment(*, everywhere: bool = False) -> dict[str, str]:
    """Return the environment variables of every process below Ray.

    On this machine those that the operator did not set; for processes `everywhere` all.

    Two processes with two OpenMP threads each on two cores slow each other down 4-10 times if waiting threads
    spin for long. So they spin for about ten microseconds, which makes a train step 6-10 % faster than not
    spinning at all, and every process computes with one thread; a pool raises its own number for the holder
    of its device's lock. And memory freed by a train step stays in the process for the next one: getting it
    back from the system page by page costs a twentieth of the step. For the next step to find it, threads
    share few memory arenas: with one for each, a service that ran job after job used several times the memory
    of the largest, and spent a twentieth more on new pages.
    """
    wanted = {
        "OMP_NUM_THREADS": "1",
        "GOMP_SPINCOUNT": "20000",
        "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
        "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
        "MALLOC_ARENA_MAX": "4",
        "TOKENIZERS_PARALLELISM": "false",
        # Ray renames its processes by overwriting their environment, in which we find them again.
        "SPT_NOENV": "1",
    }
    return wanted if everywhere else {key: value for key, value in wanted.items() if key not in os.environ}
