"""Draw tokens from logits, each by its own seed.

Which token a request gets depends on its seed, the token's position and the logits alone: not on the other
requests of the batch, their order, or what was drawn before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    cumulative = _cumulated(logprobs.double().exp_())
    total = cumulative[:, -1]
    target = torch.from_numpy(numbers).to(logprobs.device) * total
    # Rounding may lift the target to the total, where no token lies.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    return found.clamp_(max=logprobs.shape[-1] - 1)


def _cumulated(numbers: Tensor) -> Tensor:
    """Sum up along the last dimension, in place if that is faster."""
    if numbers.device.type != "cpu":
        return numbers.cumsum(dim=-1)
    # numpy takes a tenth of torch's time on a CPU.
    np.cumsum(numbers.numpy(), axis=-1, out=numbers.numpy())
    return numbers


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = word ^ (word >> np.uint64(30))
    word = word * np.uint64(0xBF58476D1CE4E5B9)
    word = word ^ (word >> np.uint64(27))
    word = word * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
