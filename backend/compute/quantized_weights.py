"""Base models whose linear layers have weights of 4 or 8 bits, through bitsandbytes.

Only adapters are trained on them. The output head, embeddings and norms keep the number format of the
service. Learner and engine load the same way, so they round alike.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig

from backend.compute.supported_models import Quantization
from tinkergym.basics.extras import import_extra


def loading_options(kind: Quantization, *, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return the options of `from_pretrained` that quantize a model; none for the empty kind.

    Raises:
        MissingExtraError: bitsandbytes is not installed.
    """
    if not kind:
        return {}
    import_extra("bitsandbytes", f"a base model with weights in {kind} needs it", extra="bitsandbytes")
    if kind == "nf4":
        chosen = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
        )
    else:
        # It warns in every layer of every pass that inputs become float16.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        # Without outliers, which are found in a whole batch: a token's logprob would depend on the others.
        chosen = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)
    return {"quantization_config": chosen, "device_map": {"": device}}


def through_one_product(model: nn.Module) -> None:
    """Let all NF4 layers compute in one way, for any number of rows.

    bitsandbytes multiplies a single row with another kernel. On a CPU (0.50) its result differs by several
    nats; and rounding must not depend on how many sequences are sampled together.
    """
    for module in model.modules():
        if is_quantized(module) and getattr(module.weight, "quant_state", None) is not None:
            module.forward = partial(_product, module)


def _product(module: Any, inputs: torch.Tensor) -> torch.Tensor:
    functions = import_extra("bitsandbytes.autograd._functions", "NF4 needs it", extra="bitsandbytes")
    weight, bias = module.weight, module.bias
    # It keeps the packed weight for the backward pass, and unpacks it again there.
    out = functions.MatMul4Bit.apply(
        inputs.to(module.compute_dtype), weight.t(), None, bias, weight.quant_state
    )
    return out.to(inputs.dtype)  # type: ignore[no-any-return]


def is_quantized(module: nn.Module) -> bool:
    """Whether a layer's weight is stored in bitsandbytes' formats."""
    return isinstance(module, nn.Linear) and type(module).__module__.startswith("bitsandbytes.")
