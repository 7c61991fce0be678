"""What one GPU achieves here, with a 0.5 B model of random weights: `make bench-gpu`.

In this order, each figure written as soon as it is measured, so that a run that is cut leaves those before:

- a step of RL of the whole service: `tinkergym serve` and a client, from the order to the published version;
- the learner: the share of the device's peak arithmetic (MFU) of a LoRA step, micro-batches filling the GPU;
- the transformers engine: sampled tokens per second of a batch, against the limit of the memory's bandwidth
  (each step must read all weights and the whole cache once);
- parity: the engine's logprobs against those of a training forward pass, in bfloat16.

`--dry` runs all of it on the CPU with a tiny model, to see that the script works; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tinkergym as tg
from backend.engines.asking import Asked
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from benchmarks.common import RESULTS, Figure, service, write_result
from benchmarks.step_work import Prompts, Shape, model_directory
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.schema.sampling import Completion, SampleRequest

SHAPE = Shape(
    hidden=896, intermediate=4864, layers=24, heads=14, key_value_heads=2, head_dim=64, vocabulary=151_936
)
RANK = 16
ASKED_SECONDS = 60.0
ASKED_MFU = 0.35
ASKED_DECODING = 0.50
ASKED_PARITY = 2e-2

# Dense bf16, in FLOP/s, from the vendors' data sheets; the longest matching name counts.
PEAK_FLOPS = {
    "A100": 312e12,
    "A10": 125e12,
    "L4": 121e12,
    "L40": 181e12,
    "L40S": 362e12,
    "H100": 989e12,
    "H100 PCIe": 756e12,
    "H200": 989e12,
    "RTX 3090": 71e12,
    "RTX 4090": 165e12,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much is computed, where."""

    device: str = "cuda"
    shape: Shape = SHAPE
    steps: int = 3
    """Of RL, with groups x groups episodes of one answer each."""
    groups: int = 8
    batch: int = 64
    prompt_tokens: int = 128
    answer_tokens: int = 256
    train_tokens: int = 65_536
    train_length: int = 1024
    runs: int = 3


DRY = Work(
    device="cpu",
    shape=Shape(),
    steps=1,
    groups=2,
    batch=4,
    prompt_tokens=8,
    answer_tokens=8,
    train_tokens=256,
    train_length=64,
    runs=1,
)


def main() -> int:
    """Measure, print and write; the exit status counts the figures that missed their goal."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="on the CPU, with a tiny model")
    parser.add_argument("--into", type=Path, help=f"the folder of the result (default: {RESULTS}; dry: none)")
    options = parser.parse_args()
    if not options.dry and not torch.cuda.is_available():
        print("torch sees no GPU on this machine; `python -m benchmarks.gpu --dry` tries it on the CPU.")
        return 1
    work = DRY if options.dry else Work()
    into = options.into or (None if options.dry else RESULTS)
    figures: list[Figure] = []
    details: dict[str, Any] = {"dry": options.dry, "device": _device_name(work)}
    with model_directory(work.shape) as model:
        for name, figure, numbers in measured(model, work):
            print(f"{figure.what}: {figure.measured} (asked: {figure.asked})", flush=True)
            figures.append(figure)
            details[name] = numbers
            if into is not None:
                write_result("gpu", figures, details, command="python -m benchmarks.gpu", folder=into)
    return 0 if options.dry else sum(not figure.reached for figure in figures)


def measured(model: Path, work: Work) -> Iterator[tuple[str, Figure, dict[str, Any]]]:
    """Yield each figure with its name and details, when it is measured."""
    yield "rl_step", *rl_step(model, work)
    yield "learner", *learner_speed(model, work)
    engine = TransformersEngine(
        model,
        device=work.device,
        dtype=torch.bfloat16,
        cache_bytes=8 << 30 if work.device == "cuda" else None,
    )
    answers: list[tuple[list[int], Completion]] = []
    try:
        yield "decoding", *decoding(engine, work, answers)
    finally:
        engine.close()
    yield "parity", *parity(model, work, answers)


def rl_step(model: Path, work: Work) -> tuple[Figure, dict[str, Any]]:
    """Train some steps through a service of its own; the first one warms up if there are more."""
    settings = [f"models.measured={model}", 'preload=["measured"]', "dtype=bfloat16"]
    if work.device == "cpu":
        settings.append("placement.gpus=0")
    began = time.perf_counter()
    with service(None, *settings) as running, tg.Client(running.url, running.api_key) as client:
        job = client.train(
            Prompts,
            model="measured",
            steps=work.steps,
            algorithm=tg.GRPO(group_size=work.groups, groups_per_step=work.groups),
            sampling=tg.Sampling(max_turn_tokens=min(work.answer_tokens, 128)),
        )
        job.wait()
        steps = job.steps()
    in_all = time.perf_counter() - began
    seconds = statistics.median(step.step_seconds for step in steps[1:] or steps)
    return Figure(
        what=f"RL step of the whole service, {work.groups**2} episodes",
        asked=f"<= {ASKED_SECONDS:.0f} s",
        measured=f"{seconds:.1f} s",
        reached=seconds <= ASKED_SECONDS,
    ), {
        "with_start_of_the_service": in_all,
        "steps": [
            {"all": step.step_seconds, "sampling": step.sampling_seconds, "learning": step.learning_seconds}
            for step in steps
        ],
    }


def learner_speed(model: Path, work: Work) -> tuple[Figure, dict[str, Any]]:
    """Measure LoRA steps of the learner, with the optimizer."""
    learner = Learner(model, device=work.device, dtype=torch.bfloat16)
    learner.create_policy("bench", LoRA(rank=RANK), seed=0)
    rows = torch.randint(3, 800, (work.train_tokens // work.train_length, work.train_length)).tolist()
    sequences = [
        TrainSequence(
            token_ids=row,
            loss_mask=[False] + [True] * (len(row) - 1),
            sampling_logprobs=[None] + [-6.9] * (len(row) - 1),
            advantage=1.0 - 2.0 * (number % 2),
        )
        for number, row in enumerate(rows)
    ]

    def step() -> None:
        learner.forward_backward("bench", sequences, policy_loss())
        learner.optim_step("bench", learning_rate=1e-6)

    step()  # It warms up, and finds how many tokens fit.
    seconds = statistics.median(_seconds(step, work) for _ in range(work.runs))
    peak, source = _peak(work)
    share = train_flops(work) / seconds / peak
    memory = torch.cuda.max_memory_allocated() if work.device == "cuda" else 0
    learner.drop("bench")
    return Figure(
        what=f"learner: LoRA step of {work.train_tokens} tokens",
        asked=f"MFU >= {ASKED_MFU:.0%}",
        measured=f"{share:.0%} ({work.train_tokens / seconds:,.0f} tokens/s)",
        reached=share >= ASKED_MFU,
    ), {"seconds": seconds, "peak_flops": peak, "peak_source": source, "peak_memory_bytes": memory}


def train_flops(work: Work) -> float:
    """Return the useful work of a LoRA step in FLOP.

    A frozen weight is multiplied twice per token, forward and for the gradient of its input: 4 FLOP each.
    An adapter's weight is multiplied a third time, for its own gradient: 6. Causal attention looks back over
    half the sequence on average; its backward takes twice its forward. The input embedding is looked up.
    """
    linear, adapter = _layer_parameters(work.shape)
    frozen = work.shape.layers * linear + work.shape.vocabulary * work.shape.hidden
    heads = work.shape.heads * work.shape.head_dim
    attention = 2 * work.train_length * heads * work.shape.layers
    return work.train_tokens * float(4 * frozen + 6 * work.shape.layers * adapter + 3 * attention)


def decoding(
    engine: TransformersEngine, work: Work, answers: list[tuple[list[int], Completion]]
) -> tuple[Figure, dict[str, Any]]:
    """Let the engine answer a batch; what it answers in the last run is added to `answers`."""
    seconds = []
    for run in range(work.runs + 1):
        first = _ask(engine, work, tokens=1, run=run)[1]
        found, all_of_them = _ask(engine, work, tokens=work.answer_tokens, run=run)
        if run:  # The first one warms up.
            seconds.append((all_of_them - first) / (work.answer_tokens - 1))
    answers += found
    per_token, bandwidth = statistics.median(seconds), _bandwidth(work)
    roof = work.batch * bandwidth / _bytes_per_step(work)
    rate = work.batch / per_token
    return Figure(
        what=f"transformers engine: decoding at batch {work.batch}",
        asked=f">= {ASKED_DECODING:.0%} of the memory's roof",
        measured=f"{rate / roof:.0%} ({rate:,.0f} tokens/s)",
        reached=rate / roof >= ASKED_DECODING,
    ), {"seconds_per_token": per_token, "roof_tokens_per_second": roof, "bytes_per_second": bandwidth}


@torch.no_grad()
def parity(
    model: Path, work: Work, answers: list[tuple[list[int], Completion]]
) -> tuple[Figure, dict[str, Any]]:
    """Compare some answers' logprobs, in nats, with those of a training forward pass."""
    learner = Learner(model, device=work.device, dtype=torch.bfloat16)
    sequences = [
        TrainSequence(
            token_ids=prompt + answer.token_ids,
            loss_mask=[False] * len(prompt) + [True] * len(answer.token_ids),
            sampling_logprobs=[None] * len(prompt) + list(answer.sampling_logprobs),
            advantage=1.0,
        )
        for prompt, answer in answers[:8]
    ]
    learned = learner.logprobs(None, sequences)
    gaps = torch.cat(
        [
            (torch.as_tensor(own)[-len(answer.token_ids) :] - torch.tensor(answer.sampling_logprobs)).abs()
            for own, (_, answer) in zip(learned, answers, strict=False)
        ]
    )
    mean, largest = float(gaps.mean()), float(gaps.max())
    return Figure(
        what="sampling against a training forward, bfloat16",
        asked=f"mean abs difference <= {ASKED_PARITY:.0e}",
        measured=f"{mean:.1e} (largest {largest:.1e})",
        reached=mean <= ASKED_PARITY,
    ), {"mean": mean, "largest": largest, "tokens": gaps.numel()}


def _ask(
    engine: TransformersEngine, work: Work, *, tokens: int, run: int
) -> tuple[list[tuple[list[int], Completion]], float]:
    """Return prompts with their answers, and the seconds that they took."""
    requests = [
        SampleRequest(
            request_id=f"{run}-{tokens}-{row}",
            policy="",
            policy_version=0,
            prompt_ids=[
                3 + (7919 * (i + 31 * row + 997 * run) + tokens) % 800 for i in range(work.prompt_tokens)
            ],
            max_tokens=tokens,
            seed=row,
        )
        for row in range(work.batch)
    ]
    began = time.perf_counter()
    found = Asked(engine, requests).wait(600)
    seconds = time.perf_counter() - began
    answers = [(list(request.prompt_ids), found[request.request_id]) for request in requests]
    refused = [answer for _, answer in answers if not isinstance(answer, Completion)]
    if refused:
        raise RuntimeError(f"the engine failed: {refused[0]}")
    return [(prompt, answer) for prompt, answer in answers if isinstance(answer, Completion)], seconds


def _layer_parameters(shape: Shape) -> tuple[int, int]:
    """Return the numbers of a layer's matrices, and of an adapter of all of them."""
    query, key = shape.heads * shape.head_dim, shape.key_value_heads * shape.head_dim
    wide = [(shape.hidden, shape.intermediate)] * 3
    pairs = [(shape.hidden, query), (shape.hidden, key), (shape.hidden, key), (query, shape.hidden), *wide]
    return sum(a * b for a, b in pairs), RANK * sum(a + b for a, b in pairs)


def _bytes_per_step(work: Work) -> int:
    """Bytes that a decoding step must read, in the middle of the answer; embeddings are looked up."""
    shape = work.shape
    weights = shape.layers * _layer_parameters(shape)[0] + shape.vocabulary * shape.hidden
    per_token = 2 * shape.layers * shape.key_value_heads * shape.head_dim
    return 2 * (weights + work.batch * (work.prompt_tokens + work.answer_tokens // 2) * per_token)


def _device_name(work: Work) -> str:
    return torch.cuda.get_device_name() if work.device == "cuda" else platform.processor() or "CPU"


def _bandwidth(work: Work) -> float:
    """Bytes per second that a copy within the device's memory reads and writes."""
    source = torch.empty(2**30 if work.device == "cuda" else 2**20, dtype=torch.uint8, device=work.device)
    target = torch.empty_like(source)
    return 2 * source.numel() / min(_seconds(lambda: target.copy_(source), work) for _ in range(20))


def _peak(work: Work) -> tuple[float, str]:
    """Return the device's arithmetic in FLOP/s, and where that is from."""
    name = _device_name(work)
    if known := [key for key in PEAK_FLOPS if key in name]:
        key = max(known, key=len)
        return PEAK_FLOPS[key], f"bf16 by the data sheet ({key})"
    size = 8192 if work.device == "cuda" else 128
    left: Tensor = torch.randn(size, size, device=work.device, dtype=torch.bfloat16)
    return 2 * size**3 / min(_seconds(lambda: left @ left, work) for _ in range(20)), "one large product"


def _seconds(act: Callable[[], object], work: Work) -> float:
    if work.device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    act()
    if work.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
