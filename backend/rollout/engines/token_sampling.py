"""Draw tokens from logits, each by its own seed.

Which token a request gets depends on its seed, the token's position and the logits alone: not on the other
requests of the batch, their order, or what was drawn before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

_GOLDEN = 0x9E3779B97F4A7C15


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """Return one number in [0, 1) per (seed, position): the splitmix64 generator, read by position.

    The seed is mixed first, so that neighbouring seeds do not give shifted copies of one stream.

    Source:
        Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014.
    """
    with np.errstate(over="ignore"):
        start = _mix(np.array(seeds, dtype=np.uint64))
        step = np.array(positions, dtype=np.uint64) + np.uint64(1)
        bits = _mix(start + step * np.uint64(_GOLDEN))
    # The upper 53 bits are what a float64 holds exactly.
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choose_tokens(
    logits: Tensor, temperatures: Sequence[float], seeds: Sequence[int], positions: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Choose one token per row by inverse CDF.

    Args:
        logits: [N, V], any float dtype.
        temperatures: N numbers; 0 takes the likeliest token and reports its logprob at temperature 1.
        seeds: N unsigned 64-bit numbers.
        positions: N numbers; how many tokens stand before the chosen one.

    Returns:
        N token ids, and their logprobs in nats: `log_softmax(logits / temperature)` in float32. A row without
        a finite distribution gets NaN.
    """
    logits = logits.float()
    if any(temperature not in (0.0, 1.0) for temperature in temperatures):
        scale = torch.tensor([t or 1.0 for t in temperatures], dtype=torch.float32, device=logits.device)
        logits = logits / scale[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    tokens = draw_tokens(logprobs, seeds, positions)
    greedy = [row for row, temperature in enumerate(temperatures) if temperature == 0.0]
    if greedy:
        rows = torch.tensor(greedy, device=logits.device)
        tokens[rows] = logprobs[rows].argmax(dim=-1)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    # Both in one transfer: on a GPU every .tolist() waits for the device.
    pair = torch.stack([tokens.double(), chosen.double()]).tolist()
    return [int(token) for token in pair[0]], pair[1]


def draw_tokens(logprobs: Tensor, seeds: Sequence[int], positions: Sequence[int]) -> Tensor:
    """Draw one token per row of `logprobs` ([N, V], normalised) by inverse CDF; [N] int64."""
    return _inverse_cdf(logprobs, uniforms(seeds, positions))


def _inverse_cdf(logprobs: Tensor, numbers: NDArray[np.float64]) -> Tensor:
    """Return the token at which the cumulated probability passes each number, in two stages.

    First the block of tokens, then the token in it: what is cumulated in float64 are the blocks' sums and one
    block, 2 sqrt(V) numbers per row instead of V. The blocks' sums are float32, as the logprobs are: that
    moves up to some 1e-7 of a block's probability to its last token.
    """
    rows, size = logprobs.shape
    width = math.isqrt(size - 1) + 1
    blocks = -(-size // width)
    probabilities = logprobs.exp()
    if blocks * width > size:
        probabilities = functional.pad(probabilities, (0, blocks * width - size))
    probabilities = probabilities.view(rows, blocks, width)
    numbers_here = torch.from_numpy(numbers).to(logprobs.device)[:, None]

    cumulated = probabilities.sum(dim=-1).double().cumsum(dim=-1)
    target = _below(numbers_here * cumulated[:, -1:], cumulated[:, -1:])
    block = torch.searchsorted(cumulated, target, right=True).clamp_(max=blocks - 1)
    before = torch.where(block > 0, cumulated.gather(1, (block - 1).clamp_(min=0)), 0.0)

    chosen = probabilities.gather(1, block[:, :, None].expand(-1, -1, width))[:, 0]
    within = chosen.double().cumsum(dim=-1)
    # A block's sum in float32 may be a little more than what its tokens add up to.
    place = torch.searchsorted(within, _below(target - before, within[:, -1:]), right=True)
    return (block * width + place).clamp_(max=size - 1)[:, 0]


def _below(numbers: Tensor, end: Tensor) -> Tensor:
    # At the end itself, and beyond, no token lies.
    return torch.minimum(numbers, torch.nextafter(end, torch.zeros_like(end)))


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = word ^ (word >> np.uint64(30))
    word = word * np.uint64(0xBF58476D1CE4E5B9)
    word = word ^ (word >> np.uint64(27))
    word = word * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
