"""Share full weights by shared memory and by CUDA IPC; `python -m benchmarks.gpu_handover`.

What `vllm.full_weights` chooses between: for each way the seconds to share the float32 weights of a model,
and those in which a process on the same GPU takes them over into weights of its own. That one also hashes
what it was given, which must be what was shared. Needs what `gpu.py` needs, and the package itself.

`--device cpu --tiny` runs all of it in seconds, to see that the script works: there is shared memory only.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from backend.compute.weights import FullWeights, weights_sha256
from backend.engines.vllm.folder import private_folder
from backend.engines.vllm.shared_weights import Opening, open_weights, share_in_file, share_on_device
from benchmarks import gpu

RESULT = Path(__file__).parent / "results" / "gpu_handover.json"
WAYS = ("host", "device")
RUNS = 3


def main() -> int:
    """Measure, print, write the JSON; the exit status is 1 if different bits arrive."""
    parser = gpu.parser_of(__doc__, RESULT)
    parser.add_argument("--read", action="store_true", help="be the process that takes weights over")
    options = parser.parse_args()
    device = gpu.device_of(options, parser)
    if device.index:
        parser.error("the first GPU is measured; CUDA_VISIBLE_DEVICES says which that is")
    if options.read:
        return _read(device)
    torch.manual_seed(0)
    machine = gpu.probe(device, tiny=options.tiny)
    found = {shape.name: measure(shape, device) for shape in gpu.shapes_of(options)}
    for name, numbers in found.items():
        print(f"{name}: {numbers['bytes'] / 2**30:.2f} GiB", end="")
        for way, seconds in numbers["share_seconds"].items():
            print(f"; {way} {seconds:.3f} s to share, {numbers['take_seconds'][way]:.3f} s to take", end="")
        print("" if numbers["same"] else "; OTHER BITS ARRIVED")
    gpu.write_details(options, RESULT, machine, found)
    return int(not all(numbers["same"] for numbers in found.values()))


def measure(shape: gpu.Shape, device: torch.device) -> dict[str, Any]:
    """Share a model's weights in all ways alternately; another process copies them."""
    model = gpu.build(shape, device, length=64)
    tensors = {name: tensor.float().cpu() for name, tensor in model.state_dict().items()}
    del model
    expected = weights_sha256(FullWeights(tensors=tensors))
    length = sum(tensor.nbytes for tensor in tensors.values())
    share: dict[str, list[float]] = {}
    take: dict[str, list[float]] = {}
    same = True
    folder = private_folder(length)
    command = [sys.executable, "-m", "benchmarks.gpu_handover", "--read", "--device", str(device)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for run in range(RUNS + 1):
            for way in WAYS if device.type == "cuda" else WAYS[:1]:
                began = time.perf_counter()
                memory, opening = _shared(tensors, way, folder / f"{run}", device)
                seconds = time.perf_counter() - began
                reader.stdin.write(json.dumps(opening) + "\n")
                reader.stdin.flush()
                taken, arrived = json.loads(reader.stdout.readline())
                same = same and arrived == expected
                if run:  # the first maps memory and starts CUDA
                    share.setdefault(way, []).append(seconds)
                    take.setdefault(way, []).append(taken)
                del memory
                (folder / f"{run}").unlink(missing_ok=True)
        reader.stdin.close()
    folder.rmdir()
    return {
        "bytes": length,
        "same": same,
        "share_seconds": {way: statistics.median(each) for way, each in share.items()},
        "take_seconds": {way: statistics.median(each) for way, each in take.items()},
    }


def _shared(
    tensors: dict[str, torch.Tensor], way: str, path: Path, device: torch.device
) -> tuple[torch.Tensor | None, Opening]:
    return share_on_device(tensors, device) if way == "device" else (None, share_in_file(tensors, path))


def _read(device: torch.device) -> int:
    own: dict[str, torch.Tensor] = {}
    for line in sys.stdin:
        opening = json.loads(line)
        # A function's opened memory is released when it returns, and freed as soon as this is answered.
        print(json.dumps(_take(opening, own, device)), flush=True)
    return 0


def _take(opening: Opening, own: dict[str, torch.Tensor], device: torch.device) -> tuple[float, str]:
    began = time.perf_counter()
    tensors = open_weights(opening)
    for name, tensor in tensors.items():
        if name not in own:
            own[name] = torch.empty_like(tensor, device=device)
        own[name].copy_(tensor)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    return seconds, weights_sha256(FullWeights(tensors=tensors))


if __name__ == "__main__":
    sys.exit(main())
