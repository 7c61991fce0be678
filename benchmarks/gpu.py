"""Decoding, training and parity of models with random weights on one GPU; `python benchmarks/gpu.py`.

Self-contained: needs torch, transformers and peft, but not tinkergym. It answers three questions about the
machine and our way of computing:

- decoding: tokens per second of a batch, against the limit of the memory's bandwidth (every step must read
  all weights and the whole key-value cache once);
- training: the share of the device's peak arithmetic that a LoRA step uses (MFU);
- parity: whether decoding step by step with a cache gives the logprobs of a training forward pass.

`--device cpu --tiny` runs everything in seconds, to check that the script works; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM, StaticCache

DECODE_ASKED = 0.50
MFU_ASKED = 0.35
PARITY_ASKED = 2e-2
BATCH = 64
PROMPT_TOKENS = 128
DECODE_TOKENS = 256
TRAIN_TOKENS = 16_384
TRAIN_LENGTH = 1024
LORA_RANK = 16
RESULT = Path(__file__).parent / "results" / "gpu.json"

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
class Shape:
    """A decoder, named after its size."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    vocabulary: int
    tied: bool


SHAPES = (
    Shape(
        name="0.5 B",
        hidden=896,
        intermediate=4864,
        layers=24,
        heads=14,
        key_value_heads=2,
        vocabulary=151_936,
        tied=True,
    ),
    Shape(
        name="1.5 B",
        hidden=1536,
        intermediate=8960,
        layers=28,
        heads=12,
        key_value_heads=2,
        vocabulary=151_936,
        tied=True,
    ),
)
TINY = Shape(
    name="tiny",
    hidden=64,
    intermediate=128,
    layers=2,
    heads=4,
    key_value_heads=2,
    vocabulary=512,
    tied=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much is decoded and trained."""

    batch: int = BATCH
    prompt_tokens: int = PROMPT_TOKENS
    decode_tokens: int = DECODE_TOKENS
    train_tokens: int = TRAIN_TOKENS
    train_length: int = TRAIN_LENGTH
    micro_batch: int = 4
    """Sequences in one forward and backward."""
    runs: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The device's limits."""

    name: str
    flops: float
    """Peak bf16 FLOP/s."""
    flops_source: str
    bandwidth: float
    """Bytes/s that a copy within the device's memory reads and writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table."""

    what: str
    asked: str
    measured: str
    reached: bool


def parser_of(description: str, result: Path) -> argparse.ArgumentParser:
    """Return a parser for the options of such scripts."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--model", choices=[shape.name for shape in SHAPES], help="only this model")
    models.add_argument("--tiny", action="store_true", help="a tiny model and little work, for a smoke test")
    parser.add_argument("--json", type=Path, help=f"where the result goes (default: {result}, tiny: nowhere)")
    return parser


def shapes_of(options: argparse.Namespace) -> list[Shape]:
    """Return the models to measure."""
    return [TINY] if options.tiny else [one for one in SHAPES if options.model in {None, one.name}]


def device_of(options: argparse.Namespace, parser: argparse.ArgumentParser) -> torch.device:
    """Return the requested device if it exists."""
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; `--device cpu --tiny` tries the script without one")
    return device


def write_details(
    options: argparse.Namespace, result: Path, machine: Machine, details: dict[str, Any], **more: Any
) -> None:
    """Write what another script of this kind found, which is named as its result; tiny work is not kept."""
    written = {
        "name": result.stem,
        "command": shlex.join(["python", "-m", f"benchmarks.{result.stem}", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": asdict(machine),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        **more,
        "details": details,
    }
    _write(options, result, written)


def _write(options: argparse.Namespace, result: Path, written: dict[str, Any]) -> None:
    target = options.json or (None if options.tiny else result)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(written, indent=1) + "\n")
        print(f"written: {target}")


def main() -> int:
    """Measure, print the table, write the JSON; the exit status counts the figures that missed their goal."""
    parser = parser_of(__doc__, RESULT)
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs and torch.compile")
    options = parser.parse_args()
    device = device_of(options, parser)
    work = Work()
    if options.tiny:
        work = Work(batch=4, prompt_tokens=8, decode_tokens=8, train_tokens=128, train_length=32, runs=2)
    torch.manual_seed(0)
    machine = probe(device, tiny=options.tiny)
    print(f"{machine.name}: {machine.bandwidth / 1e9:,.0f} GB/s measured, ", end="")
    print(f"{machine.flops / 1e12:,.1f} TFLOP/s {machine.flops_source}")
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for shape in shapes_of(options):
        found, numbers = measure(shape, work, machine, device, compiled=not options.eager)
        figures += found
        details[shape.name] = numbers
        # After each model, so that a run that is cut leaves those it has measured.
        _write(options, RESULT, _result(figures, details, machine, work))
    _print_table(figures)
    return 0 if options.tiny else sum(not figure.reached for figure in figures)


def measure(
    shape: Shape, work: Work, machine: Machine, device: torch.device, *, compiled: bool
) -> tuple[list[Figure], dict[str, Any]]:
    """Build the model and measure it; what cannot be compiled is measured uncompiled and reported."""
    model = build(shape, device, length=max(work.prompt_tokens + work.decode_tokens, work.train_length))
    parity_mean, parity_max = parity(model, work, device)
    decoded = decode_speed(model, work, machine, device, compiled=compiled)
    trained = train_speed(model, work, machine, device, compiled=compiled)
    figures = [
        Figure(
            what=f"{shape.name}: decoding over a cache against a training forward, bf16",
            asked=f"mean abs difference <= {PARITY_ASKED:.0e}",
            measured=f"{parity_mean:.1e} (largest {parity_max:.1e})",
            reached=parity_mean <= PARITY_ASKED,
        ),
        Figure(
            what=f"{shape.name}: decoding at batch {work.batch}",
            asked=f">= {DECODE_ASKED:.0%} of the memory's roof",
            measured=_speed(decoded, "share"),
            reached=decoded["share"] >= DECODE_ASKED,
        ),
        Figure(
            what=f"{shape.name}: LoRA step of {work.train_tokens} tokens",
            asked=f"MFU >= {MFU_ASKED:.0%}",
            measured=_speed(trained, "mfu"),
            reached=trained["mfu"] >= MFU_ASKED,
        ),
    ]
    numbers = {
        "parameters": sum(p.numel() for n, p in model.named_parameters() if "lora_" not in n),
        "parity": {"mean": parity_mean, "largest": parity_max},
        "decode": decoded,
        "train": trained,
    }
    del model
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return figures, numbers


def _speed(numbers: dict[str, Any], share: str) -> str:
    return f"{numbers[share]:.0%} ({numbers['tokens_per_second']:,.0f} tokens/s, {numbers['way']})"


def build(shape: Shape, device: torch.device, *, length: int) -> Any:
    """Return a model with random bf16 weights."""
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=length,
        tie_word_embeddings=shape.tied,
        attn_implementation="sdpa",
    )
    with torch.device(device):
        model: Any = Qwen2ForCausalLM(config)
    return model.to(device=device, dtype=torch.bfloat16).eval()


# --- parity ---------------------------------------------------------------------------------------------


@torch.no_grad()
def parity(model: Any, work: Work, device: torch.device) -> tuple[float, float]:
    """Sample with a cache, then score the same tokens in one forward; return mean and largest difference."""
    batch = min(work.batch, 16)
    total = work.prompt_tokens + min(work.decode_tokens, 64)
    ids = torch.randint(0, model.config.vocab_size, (batch, work.prompt_tokens), device=device)
    cache = StaticCache(config=model.config, max_cache_len=total)
    at = torch.arange(work.prompt_tokens, device=device)
    new, sampled = ids, []
    while True:
        logits = _cached_logits(model, new, at, cache)
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        chosen = torch.multinomial(logprobs.exp(), 1)
        sampled.append(logprobs.gather(1, chosen))
        ids = torch.cat([ids, chosen], dim=1)
        if ids.shape[1] == total:
            break
        new, at = chosen, at[-1:] + 1
    forward = model(input_ids=ids[:, :-1], use_cache=False, logits_to_keep=len(sampled)).logits
    learner = torch.log_softmax(forward.float(), dim=-1)
    learner = learner.gather(2, ids[:, work.prompt_tokens :, None])[..., 0]
    gap = (learner - torch.cat(sampled, dim=1)).abs()
    return float(gap.mean()), float(gap.max())


def _cached_logits(model: Any, ids: Tensor, at: Tensor, cache: StaticCache) -> Tensor:
    positions = at[None].expand(ids.shape[0], -1)
    out: Tensor = model(
        input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
    ).logits[:, -1]
    return out


# --- decoding -------------------------------------------------------------------------------------------


def decode_speed(
    model: Any, work: Work, machine: Machine, device: torch.device, *, compiled: bool
) -> dict[str, Any]:
    """Measure the steps after the prompt, including sampling, in every way that works; the best counts."""
    ways: list[tuple[str, Callable[[Callable[[], None]], Callable[[], None]]]] = [
        ("eager", lambda step: step)
    ]
    if compiled and device.type == "cuda":
        ways.append(("CUDA graph", _graphed))
    found: dict[str, float] = {}
    failed: dict[str, str] = {}
    for compile_first in (False, True) if compiled and device.type == "cuda" else (False,):
        for name, prepare in ways:
            way = f"compiled, {name}" if compile_first else name
            try:
                found[way] = _decode_seconds(model, work, device, prepare, compile_first=compile_first)
            except (
                Exception
            ) as error:  # a way that this device or version does not support does not stop the others
                failed[way] = f"{type(error).__name__}: {str(error)[:300]}"
    if not found:
        raise RuntimeError(f"no way of decoding works here: {failed}")
    way, seconds = min(found.items(), key=lambda item: item[1])
    read = bytes_per_step(model, work)
    roof = work.batch * machine.bandwidth / read
    rate = work.batch / seconds
    return {
        "way": way,
        "seconds_per_step": found,
        "failed": failed,
        "tokens_per_second": rate,
        "bytes_per_step": read,
        "roof_tokens_per_second": roof,
        "share": rate / roof,
    }


@torch.inference_mode()
def _decode_seconds(
    model: Any,
    work: Work,
    device: torch.device,
    prepare: Callable[[Callable[[], None]], Callable[[], None]],
    *,
    compile_first: bool,
) -> float:
    """Return seconds per step, the median of the runs."""
    total = work.prompt_tokens + work.decode_tokens
    cache = StaticCache(config=model.config, max_cache_len=total)
    prompt = torch.randint(0, model.config.vocab_size, (work.batch, work.prompt_tokens), device=device)
    # The step's inputs and outputs have fixed addresses, so it can be recorded once and replayed.
    new = torch.zeros(work.batch, 1, dtype=torch.long, device=device)
    at = torch.zeros(1, dtype=torch.long, device=device)
    logprob = torch.zeros(work.batch, 1, device=device)
    forward = torch.compile(_cached_logits, dynamic=False) if compile_first else _cached_logits

    def step() -> None:
        logprobs = torch.log_softmax(forward(model, new, at, cache).float(), dim=-1)
        # Exponential race: a sample of the distribution without a synchronisation with the CPU.
        chosen = (logprobs - torch.empty_like(logprobs).exponential_().log_()).argmax(dim=-1, keepdim=True)
        logprob.copy_(logprobs.gather(1, chosen))
        new.copy_(chosen)
        at.add_(1)

    def rewind() -> None:
        at.fill_(work.prompt_tokens)
        for layer in cache.layers:
            layer.cumulative_length.fill_(work.prompt_tokens)

    _cached_logits(model, prompt, torch.arange(work.prompt_tokens, device=device), cache)
    rewind()
    replay = prepare(step)
    seconds = []
    for run in range(work.runs + 1):
        rewind()
        began = _now(device)
        for _ in range(work.decode_tokens - 1):
            replay()
        if run:
            seconds.append((_now(device) - began) / (work.decode_tokens - 1))
    return statistics.median(seconds)


def _graphed(step: Callable[[], None]) -> Callable[[], None]:
    """Record a step as a CUDA graph and return a function that replays it."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def bytes_per_step(model: Any, work: Work) -> int:
    """Return the bytes that a decoding step must read, in the middle of the answer."""
    return _weight_bytes(model) + _cache_bytes(model, work)


def _weight_bytes(model: Any) -> int:
    """Bytes of weights that a step reads: all except an embedding that is not also the head."""
    embedding = model.get_input_embeddings().weight
    tied = embedding is model.get_output_embeddings().weight
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    return int(total) if tied else int(total - embedding.numel() * embedding.element_size())


def _cache_bytes(model: Any, work: Work) -> int:
    """Bytes of keys and values that a step reads, in the middle of the answer."""
    config = model.config
    head_dim = config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * 2
    return int(work.batch * (work.prompt_tokens + work.decode_tokens // 2) * per_token)


# --- training -------------------------------------------------------------------------------------------


def train_speed(
    model: Any, work: Work, machine: Machine, device: torch.device, *, compiled: bool
) -> dict[str, Any]:
    """Measure LoRA steps: forward, backward and optimizer over all tokens of a step."""
    adapted = peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    trained = [p for p in adapted.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.data = parameter.data.float()  # master weights; the products are computed in bf16
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    sequences = work.train_tokens // work.train_length
    ids = torch.randint(0, model.config.vocab_size, (sequences, work.train_length + 1), device=device)

    def loss_of(rows: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            hidden = adapted.base_model.model.model(input_ids=rows[:, :-1], use_cache=False).last_hidden_state
        return _sliced_loss(hidden.flatten(0, 1), rows[:, 1:].flatten(), model.get_output_embeddings().weight)

    found: dict[str, float] = {}
    failed: dict[str, str] = {}
    for way in ("eager", "compiled") if compiled and device.type == "cuda" else ("eager",):
        step_loss = torch.compile(loss_of, dynamic=False) if way == "compiled" else loss_of

        def step(step_loss: Callable[[Tensor], Tensor] = step_loss) -> None:
            for rows in torch.split(ids, work.micro_batch):
                (step_loss(rows) / sequences).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        try:
            found[way] = _train_seconds(step, work, device)
        except (
            Exception
        ) as error:  # a way that this device or version does not support does not stop the other
            failed[way] = f"{type(error).__name__}: {str(error)[:300]}"
            optimizer.zero_grad(set_to_none=True)
    if not found:
        raise RuntimeError(f"no way of training works here: {failed}")
    way, seconds = min(found.items(), key=lambda item: item[1])
    flops = train_flops(model, work)
    return {
        "way": way,
        "seconds_per_step": found,
        "failed": failed,
        "tokens_per_second": sequences * work.train_length / seconds,
        "flops_per_step": flops,
        "mfu": flops / seconds / machine.flops,
    }


def _train_seconds(step: Callable[[], None], work: Work, device: torch.device) -> float:
    seconds = []
    for run in range(work.runs + 2):
        began = _now(device)
        step()
        if run > 1:
            seconds.append(_now(device) - began)
    return statistics.median(seconds)


class _SlicedLoss(torch.autograd.Function):
    """Cross-entropy summed over sequences' means, without ever holding the logits of all tokens.

    The head is frozen, so the gradient goes into the hidden states alone and is taken slice by slice.
    """

    ROWS = 2048

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, targets: Tensor, head: Tensor) -> Tensor:
        gradient = torch.empty_like(hidden)
        total = hidden.new_zeros((), dtype=torch.float32)
        count = targets.numel()
        for start in range(0, count, _SlicedLoss.ROWS):
            part = slice(start, start + _SlicedLoss.ROWS)
            logits = (hidden[part].to(head.dtype) @ head.T).float()
            logprobs = torch.log_softmax(logits, dim=-1)
            chosen = targets[part][:, None]
            total -= logprobs.gather(1, chosen).sum()
            slope = logprobs.exp_()
            slope.scatter_add_(1, chosen, slope.new_full(chosen.shape, -1.0))
            gradient[part] = (slope.div_(count).to(head.dtype) @ head).to(hidden.dtype)
        ctx.save_for_backward(gradient)
        return total / count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None


def _sliced_loss(hidden: Tensor, targets: Tensor, head: Tensor) -> Tensor:
    loss: Tensor = _SlicedLoss.apply(hidden, targets, head)  # type: ignore[no-untyped-call]
    return loss


def train_flops(model: Any, work: Work) -> float:
    """Return the useful work of one step in FLOP.

    A frozen weight is multiplied twice per token, forward and for the gradient of its input: 4 FLOP each.
    An adapter's weight is multiplied a third time, for its own gradient: 6. Causal attention looks back over
    half the sequence on average; its backward takes twice its forward. The input embedding is looked up.
    """
    config = model.config
    head = model.get_output_embeddings().weight
    embedding = model.get_input_embeddings().weight
    adapter = sum(p.numel() for n, p in model.named_parameters() if "lora_" in n)
    frozen = sum(p.numel() for n, p in model.named_parameters() if "lora_" not in n) - embedding.numel()
    if head is embedding:
        frozen += head.numel()
    tokens = work.train_tokens // work.train_length * work.train_length
    weights = tokens * (4 * frozen + 6 * adapter)
    forward_attention = 2 * tokens * work.train_length * config.hidden_size * config.num_hidden_layers
    return float(weights + 3 * forward_attention)


# --- the machine ----------------------------------------------------------------------------------------


def probe(device: torch.device, *, tiny: bool) -> Machine:
    """Measure the memory's bandwidth, and look up or measure the peak of arithmetic."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    count = 2**20 if tiny else 2**30
    source = torch.empty(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = _best_seconds(lambda: target.copy_(source), device)
    known = [key for key in PEAK_FLOPS if key in name]
    if known:
        key = max(known, key=len)
        flops, origin = PEAK_FLOPS[key], f"of bf16 by the data sheet ({key})"
    else:
        size = 128 if tiny else 8192
        left = torch.randn(size, size, device=device, dtype=torch.bfloat16)
        flops = 2 * size**3 / _best_seconds(lambda: left @ left, device)
        origin = "of bf16 measured with one large product"
    return Machine(name=name, flops=flops, flops_source=origin, bandwidth=2 * count / seconds)


def _best_seconds(work: Callable[[], object], device: torch.device) -> float:
    best = float("inf")
    for _ in range(20):
        began = _now(device)
        work()
        best = min(best, _now(device) - began)
    return best


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _print_table(figures: list[Figure]) -> None:
    rows = [("figure", "asked", "measured", "")]
    rows += [(f.what, f.asked, f.measured, "ok" if f.reached else "SHORT") for f in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _result(figures: list[Figure], details: dict[str, Any], machine: Machine, work: Work) -> dict[str, Any]:
    driver = ""
    with contextlib.suppress(AttributeError):
        driver = str(torch.version.cuda)
    return {
        "name": "gpu",
        "command": shlex.join(["python", "benchmarks/gpu.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {
            **asdict(machine),
            "python": platform.python_version(),
            "cuda": driver,
            "versions": {
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "peft": peft.__version__,
            },
        },
        "work": asdict(work),
        "figures": [asdict(figure) for figure in figures],
        "details": details,
    }


if __name__ == "__main__":
    sys.exit(main())
