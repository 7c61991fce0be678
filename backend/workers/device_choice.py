"""The device on which a model of this service runs, on this machine.

Run as a program with the GPUs and ranks that are wished, it prints the refusal, if any, as JSON: so
`tinkergym serve` can check the setting without torch in its own process.
"""

from __future__ import annotations

import json
import os
import sys

import torch

from backend.errors import ConfigError

PRETENDED = "TINKERGYM_PRETENDED_GPUS"
"""An environment variable of a node whose GPUs only its Ray believes in: what is placed on them computes on
the CPU. For trying out placement without GPUs; elsewhere GPUs that torch does not see are an error."""


def device_of(gpus: int | None, *, ranks: int, seen: int | None = None) -> str:
    """Return `cpu` or `cuda`.

    Args:
        gpus: The GPUs that the operator wishes; None takes one if there is one, 0 means the CPU.
        ranks: The processes that divide the learner's work; each needs a GPU of its own.
        seen: How many there are; None asks torch.

    Raises:
        ConfigError: torch does not see that many.
    """
    if gpus == 0:
        return "cpu"
    if seen is None:
        seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not seen and (gpus is None or PRETENDED in os.environ):
        return "cpu"
    if gpus and not seen:
        raise ConfigError(
            f"{gpus} GPUs are planned or wished, but torch sees none on this machine",
            hint="set placement.gpus=0, or install a CUDA build of torch",
            field="placement.gpus",
        )
    if max(gpus or 1, ranks) > seen:
        raise ConfigError(
            f"{max(gpus or 1, ranks)} GPUs are wanted, one for each rank, but torch sees {seen}",
            hint="lower placement.gpus and placement.learner.ranks, or set placement.gpus=0",
            field="placement.gpus",
        )
    return "cuda"


def main() -> None:
    """Check the wishes in the arguments."""
    gpus, ranks = map(int, sys.argv[1:])
    try:
        device_of(gpus, ranks=ranks)
    except ConfigError as error:
        print(json.dumps({"refused": error.to_wire()}))


if __name__ == "__main__":
    main()
