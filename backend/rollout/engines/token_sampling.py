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

from backend.compiled import compiled

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
    wanted = np.array(temperatures, dtype=np.float32)
    scale = greedy = None
    if not np.isin(wanted, (0.0, 1.0)).all():
        scale = torch.from_numpy(np.where(wanted == 0.0, np.float32(1.0), wanted)).to(logits.device)
    if not wanted.all():
        greedy = torch.from_numpy(np.flatnonzero(wanted == 0.0)).to(logits.device)
    numbers = uniforms(seeds, positions).tolist()
    choose = compiled(_chosen) if logits.device.type == "cpu" else _chosen
    # Both in one transfer: on a GPU every .tolist() waits for the device.
    pair = choose(logits, scale, greedy, numbers, _block_width(logits.shape[1])).tolist()
    return [int(token) for token in pair[0]], pair[1]


def draw_tokens(logprobs: Tensor, seeds: Sequence[int], positions: Sequence[int]) -> Tensor:
    """Draw one token per row of `logprobs` ([N, V], normalised) by inverse CDF; [N] int64."""
    numbers = torch.from_numpy(uniforms(seeds, positions)).to(logprobs.device)
    return _inverse_cdf(logprobs, numbers, _block_width(logprobs.shape[1]))


def _block_width(size: int) -> int:
    return math.isqrt(size - 1) + 1


# --- compiled on CPUs, see `backend.compiled` ---------------------------------------------------------------


def _chosen(
    logits: Tensor, scale: Tensor | None, greedy: Tensor | None, numbers: list[float], width: int
) -> Tensor:
    """Return [2, N] float64, tokens and logprobs.

    Args:
        logits: [N, V], any float dtype.
        scale: [N], what each row is divided by; None divides none.
        greedy: Rows that take their likeliest token.
        numbers: N in [0, 1); a list, which is handed over without letting go of Python's lock.
        width: See `_inverse_cdf`.
    """
    logits = logits.float()
    if scale is not None:
        logits = logits / scale[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    drawn = torch.tensor(numbers, dtype=torch.float64, device=logits.device)
    tokens = _inverse_cdf(logprobs, drawn, width)
    if greedy is not None:
        tokens.index_copy_(0, greedy, logprobs.index_select(0, greedy).argmax(dim=-1))
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return torch.stack([tokens.double(), chosen.double()])


def _inverse_cdf(logprobs: Tensor, numbers: Tensor, width: int) -> Tensor:
    """Return the token at which the cumulated probability passes each number, in two stages.

    First the block of `width` tokens, then the token in it: what is cumulated in float64 are the blocks' sums
    and one block, 2 sqrt(V) numbers per row instead of V if the width is sqrt(V). The blocks' sums are
    float32, as the logprobs are: that moves up to some 1e-7 of a block's probability to its last token.
    """
    rows, size = logprobs.shape[0], logprobs.shape[1]
    blocks = -(-size // width)
    probabilities = logprobs.exp()
    if blocks * width > size:
        probabilities = functional.pad(probabilities, (0, blocks * width - size))
    probabilities = probabilities.view(rows, blocks, width)
    cumulated = probabilities.sum(dim=-1).double().cumsum(dim=-1)
    target = _below(numbers[:, None] * cumulated[:, -1:], cumulated[:, -1:])
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
