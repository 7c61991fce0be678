"""Which model fits on which GPUs: the table of the documentation, computed by the plan itself."""

from __future__ import annotations

from backend.compute.supported_models import Quantization
from backend.planning.machines import Machine, Placed, Wish
from backend.planning.model_plan import plan
from backend.planning.model_shape import ModelShape
from backend.planning.wishes import ModelPlacement

_GB = 10**9
GPUS_GB = (24, 48, 80, 141)
_COUNTS = (1, 2, 4, 8)


def _qwen(hidden: int, inner: int, layers: int, heads: int, keys: int, *, tied: bool = False) -> ModelShape:
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        key_value_heads=keys,
        head_size=hidden // heads,
        intermediate=inner,
        vocabulary=151_936,
        context_length=32_768,
        tied=tied,
    )


# The dimensions of Qwen 2.5, which most families of that size come close to.
MODELS = {
    "0.5B": _qwen(896, 4864, 24, 14, 2, tied=True),
    "1.5B": _qwen(1536, 8960, 28, 12, 2, tied=True),
    "3B": _qwen(2048, 11_008, 36, 16, 2, tied=True),
    "7B": _qwen(3584, 18_944, 28, 28, 4),
    "14B": _qwen(5120, 13_824, 48, 40, 8),
    "32B": _qwen(5120, 27_648, 64, 40, 8),
    "72B": _qwen(8192, 29_568, 80, 64, 8),
}


def gpu_table() -> str:
    """Return the table as Markdown: the fewest GPUs of one node, in bfloat16."""
    head = [f"{gb} GB, {how}" for how in ("NF4 LoRA", "LoRA", "full") for gb in GPUS_GB]
    lines = ["| model | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for name, shape in MODELS.items():
        ways: tuple[tuple[str, Quantization], ...] = (("lora", "nf4"), ("lora", ""), ("full", ""))
        cells = [_fewest(shape, gb, how, quantized) for how, quantized in ways for gb in GPUS_GB]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _fewest(shape: ModelShape, gb: int, trains: str, quantized: Quantization) -> str:
    for count in _COUNTS[:1] if quantized else _COUNTS:  # which has one learner rank
        node = Machine(node_id="node", cpus=1000, memory_bytes=10**14, gpus=(gb * _GB,) * count)
        placement = ModelPlacement.model_validate({"gpus": count, "trains": trains, "tensor_parallel": 1})
        wish = Wish(
            name="m", model="m", placement=placement, shape=shape, number_bytes=2, quantized=quantized
        )
        if isinstance(plan([node], [wish])["m"], Placed):
            return str(count)
    return "–"
