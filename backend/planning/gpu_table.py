"""Which model fits on which GPUs: the table of the documentation, computed by the plan itself."""

from __future__ import annotations

from backend.compute.supported_models import Quantization
from backend.planning.machines import Machine, Placed, Wish
from backend.planning.model_plan import plan
from backend.planning.model_shape import ModelShape
from backend.planning.wishes import GPU_MEMORY, ModelPlacement

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


_WAYS: dict[str, tuple[tuple[str, str, Quantization], ...]] = {
    "transformers": (("NF4 LoRA", "lora", "nf4"), ("LoRA", "lora", ""), ("full", "full", "")),
    "vllm": (("LoRA", "lora", ""), ("full", "full", "")),
}
"""By engine: what a column says, what is trained, and the base model's format."""


def gpu_table() -> str:
    """Return the table of each engine as Markdown: the fewest GPUs of one node, in bfloat16."""
    return "\n\n".join(f"With `engine={engine}`:\n\n{_table(engine)}" for engine in _WAYS)


def _table(engine: str) -> str:
    head = [f"{gb} GB, {how}" for how, _, _ in _WAYS[engine] for gb in GPUS_GB]
    lines = ["| model | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for name, shape in MODELS.items():
        cells = [
            _fewest(shape, gb, trains, quantized, engine)
            for _, trains, quantized in _WAYS[engine]
            for gb in GPUS_GB
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _fewest(shape: ModelShape, gb: int, trains: str, quantized: Quantization, engine: str) -> str:
    vllm = engine == "vllm"
    for count in _COUNTS[:1] if quantized else _COUNTS:  # which has one learner rank
        node = Machine(node_id="node", cpus=1000, memory_bytes=10**14, gpus=(gb * _GB,) * count)
        size = {} if vllm else {"tensor_parallel": 1}  # Only vLLM divides an engine.
        wish = Wish(
            name="m",
            model="m",
            placement=ModelPlacement.model_validate({"gpus": count, "trains": trains, **size}),
            shape=shape,
            number_bytes=2,
            quantized=quantized,
            engine_share=GPU_MEMORY if vllm else 0.0,
        )
        if isinstance(plan([node], [wish])["m"], Placed):
            return str(count)
    return "–"
