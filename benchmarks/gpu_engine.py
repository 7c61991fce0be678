"""The transformers engine on one GPU; `python -m benchmarks.gpu_engine`.

`gpu.py` measures what the machine can do, this script what the engine achieves: tokens per second of a batch,
against the limit of the memory's bandwidth, and whether its logprobs equal those of a training forward pass.
Needs the same packages as `gpu.py`, and tinkergym itself.

`--device cpu --tiny` runs everything in seconds, to check that the script works.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from backend.engines.asking import Asked
from backend.engines.transformers.engine import TransformersEngine
from benchmarks import gpu
from tinkergym.schema.sampling import Completion, SampleRequest

RESULT = Path(__file__).parent / "results" / "gpu_engine.json"


def main() -> int:
    """Measure, print, write the JSON; the exit status is 1 if logprobs differ."""
    parser = gpu.parser_of(__doc__, RESULT)
    options = parser.parse_args()
    device = gpu.device_of(options, parser)
    work = gpu.Work(batch=4, prompt_tokens=8, decode_tokens=24, runs=2) if options.tiny else gpu.Work()
    torch.manual_seed(0)
    machine = gpu.probe(device, tiny=options.tiny)
    found: dict[str, dict[str, Any]] = {}
    for shape in gpu.shapes_of(options):
        found[shape.name] = numbers = measure(shape, work, machine, device)
        print(
            f"{shape.name}: logprobs differ by {numbers['parity']:.1e} on average; "
            f"{numbers['tokens_per_second']:,.0f} tokens/s, {numbers['share']:.0%} of the roof"
        )
        gpu.write_details(options, RESULT, machine, found, work=asdict(work))
    return int(any(numbers["parity"] > gpu.PARITY_ASKED for numbers in found.values()))


def measure(shape: gpu.Shape, work: gpu.Work, machine: gpu.Machine, device: torch.device) -> dict[str, Any]:
    """Build the model and let the engine decode with it."""
    model = gpu.build(shape, device, length=work.prompt_tokens + work.decode_tokens)
    roof = work.batch * machine.bandwidth / gpu.bytes_per_step(model, work)
    seconds, gaps = [], []
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        engine = TransformersEngine(
            Path(folder), device=str(device), dtype=torch.bfloat16, cache_bytes=8 << 30
        )
        for run in range(work.runs + 1):
            first = _ask(engine, work, shape, tokens=1, run=run)[1]
            answers, all_of_them = _ask(engine, work, shape, tokens=work.decode_tokens, run=run)
            if run:  # the first one warms up
                seconds.append((all_of_them - first) / (work.decode_tokens - 1))
                gaps.append(_gap(model, answers, device))
        engine.close()
    per_token = statistics.median(seconds)
    return {
        "parity": max(gaps),
        "seconds_per_token": per_token,
        "tokens_per_second": work.batch / per_token,
        "roof_tokens_per_second": roof,
        "share": work.batch / per_token / roof,
    }


def _ask(
    engine: TransformersEngine, work: gpu.Work, shape: gpu.Shape, *, tokens: int, run: int
) -> tuple[list[tuple[list[int], Completion]], float]:
    """Return prompts with their answers, and the seconds that they took."""
    requests = [
        SampleRequest(
            request_id=f"{run}-{tokens}-{row}",
            policy="",
            policy_version=0,
            prompt_ids=[
                (7919 * (i + 31 * row + 997 * run) + tokens) % shape.vocabulary
                for i in range(work.prompt_tokens)
            ],
            max_tokens=tokens,
            seed=row,
        )
        for row in range(work.batch)
    ]
    began = time.perf_counter()
    found = Asked(engine, requests).wait(600)
    seconds = time.perf_counter() - began
    answers = [(request.prompt_ids, found[request.request_id]) for request in requests]
    refused = [answer for _, answer in answers if not isinstance(answer, Completion)]
    if refused:
        raise RuntimeError(f"the engine failed: {refused[0]}")
    return [(prompt, answer) for prompt, answer in answers if isinstance(answer, Completion)], seconds


@torch.no_grad()
def _gap(model: Any, answers: list[tuple[list[int], Completion]], device: torch.device) -> float:
    """Return the mean difference in nats between some answers' logprobs and those of one forward pass."""
    gaps = []
    for prompt, answer in answers[:8]:
        ids = torch.tensor([prompt + answer.token_ids], device=device)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0, len(prompt) - 1 :]
        logprobs = torch.log_softmax(logits.float(), dim=-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        sampled = torch.tensor(answer.sampling_logprobs, device=device)
        gaps.append((logprobs - sampled).abs().mean())
    return float(torch.stack(gaps).mean())


if __name__ == "__main__":
    sys.exit(main())
