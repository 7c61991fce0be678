"""The device that the operator's setting means on this machine.

Run as a program with the setting and the number of ranks, it prints the refusal, if any, as JSON: so
`tinkergym serve` can check the setting without torch in its own process.
"""

from __future__ import annotations

import json
import sys

import torch

from backend.errors import ConfigError


def device_of(wanted: str, *, ranks: int, gpus: int | None = None) -> str:
    """Return the device that a setting means, such as `cpu` or `cuda:1`.

    Args:
        wanted: The setting; `auto` takes a GPU if there is one.
        ranks: The processes that divide the learner's work; each needs a GPU of its own.
        gpus: How many there are; None asks torch.

    Raises:
        ConfigError: torch does not see the GPUs that the setting needs.
    """
    if gpus is None:
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        wanted = "cuda" if gpus else "cpu"
    if wanted.startswith("cuda") and not gpus:
        raise ConfigError(
            f"device={wanted!r} is set, but torch sees no GPU on this machine",
            hint="set device=cpu, or install a CUDA build of torch",
            field="device",
        )
    if wanted.startswith("cuda") and (torch.device(wanted).index or 0) >= gpus:
        raise ConfigError(
            f"device={wanted!r} is set, but torch sees {gpus} GPUs, counted from 0",
            hint="set a lower number, or device=cuda",
            field="device",
        )
    if wanted.startswith("cuda") and ranks > gpus:
        raise ConfigError(
            f"learner_ranks={ranks} need one GPU each, but torch sees {gpus}",
            hint="lower learner_ranks, or set device=cpu",
            field="learner_ranks",
        )
    return wanted


def main() -> None:
    """Check the setting in the arguments."""
    wanted, ranks = sys.argv[1:]
    try:
        device_of(wanted, ranks=int(ranks))
    except ConfigError as error:
        print(json.dumps({"refused": error.to_wire()}))


if __name__ == "__main__":
    main()
