"""Formats of fewer bits for the linear layers of a base model. Does not import torch."""

from __future__ import annotations

from typing import Literal

Quantization = Literal["", "nf4", "int8"]
"""NF4 is the 4-bit format of QLoRA (arXiv:2305.14314), int8 that of LLM.int8() (arXiv:2208.07339); empty is
the number format of the service."""

BYTES_OF = {"nf4": 0.5 + 4 / 64, "int8": 1.0}
"""Of a weight, with its share of a block's scale."""
