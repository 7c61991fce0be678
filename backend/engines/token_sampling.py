"""Draw tokens from logits, each with its own seed.

The token depends only on the request's seed, the token's position and the logits: not on other requests in
the batch, their order, or earlier draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from backend.compute.compiled import compiled

_GOLDEN = 0x9E3779B97F4A7C15

_CANDIDATES = 1024
"""Number of likely tokens sorted first, which usually include what `top_p` keeps."""

_NO_SHARE = 2.0
"""More than the total probability of all tokens."""


class Cut(Protocol):
    """The truncation of a distribution; see `tinkergym.schema.sampling.Cut`."""

    @property
    def top_k(self) -> int:
        """Keep this many of the most likely tokens; 0 keeps all."""
        ...

    @property
    def top_p(self) -> float:
        """Of those keep the fewest likely tokens with this total probability; 1 keeps all."""
        ...


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each (seed, position): splitmix64, indexed by position.

    The seed is mixed first, so neighbouring seeds do not give shifted copies of one stream.

    Source:
        Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014.
    """
    with np.errstate(over="ignore"):
        start = _mix(np.array(seeds, dtype=np.uint64))
        step = np.array(positions, dtype=np.uint64) + np.uint64(1)
        bits = _mix(start + step * np.uint64(_GOLDEN))
    # The upper 53 bits fit exactly into a float64.
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choose_tokens(
    logits: Tensor,
    temperatures: Sequence[float],
    seeds: Sequence[int],
    positions: Sequence[int],
    cuts: Mapping[int, Cut] | None = None,
) -> tuple[list[int], list[float]]:
    """Choose one token per row by inverse CDF.

    Args:
        logits: [N, V], any float dtype.
        temperatures: N numbers; 0 takes the most likely token and reports its logprob at temperature 1.
        seeds: N unsigned 64-bit numbers.
        positions: N numbers; how many tokens precede the chosen one.
        cuts: The rows with a truncated distribution. Rows with temperature 0 are not truncated, and the other
            rows are computed as without any cuts.

    Returns:
        N token ids, and their logprobs in nats: `log_softmax(logits / temperature)` in float32, renormalised
        for truncated rows. A row without a finite distribution gets NaN.
    """
    wanted = np.array(temperatures, dtype=np.float32)
    scale = greedy = None
    if not np.isin(wanted, (0.0, 1.0)).all():
        scale = torch.from_numpy(np.where(wanted == 0.0, np.float32(1.0), wanted)).to(logits.device)
    if not wanted.all():
        greedy = torch.from_numpy(np.flatnonzero(wanted == 0.0)).to(logits.device)
    cut = None
    if cuts:
        cut = _tensors_of({row: one for row, one in cuts.items() if wanted[row]}, logits)
    numbers = uniforms(seeds, positions).tolist()
    choose = compiled(_chosen) if logits.device.type == "cpu" else _chosen
    # Both in one transfer: on a GPU every .tolist() waits for the device.
    pair = choose(logits, scale, greedy, cut, numbers).tolist()
    return [int(token) for token in pair[0]], pair[1]


def likeliest_tokens(
    logits: Tensor,
    temperatures: Sequence[float],
    counts: Sequence[int],
    cuts: Mapping[int, Cut] | None = None,
) -> list[list[tuple[int, float]]]:
    """Return each row's most likely tokens with their logprobs, as computed by `choose_tokens`.

    Args:
        logits: [N, V], any float dtype.
        temperatures: As for `choose_tokens`.
        counts: How many are wanted for each row; a row truncated to fewer tokens returns fewer.
        cuts: As for `choose_tokens`.
    """
    scale = torch.tensor([each or 1.0 for each in temperatures], dtype=torch.float32, device=logits.device)
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)
    cut_logprobs(logprobs, {row: one for row, one in (cuts or {}).items() if temperatures[row]})
    values, ids = logprobs.topk(min(max(counts), logprobs.shape[1]), dim=-1)
    return [
        [(token, value) for token, value in zip(*row, strict=True) if math.isfinite(value)][:count]
        for *row, count in zip(ids.tolist(), values.tolist(), counts, strict=True)
    ]


def token_logprobs(logits: Tensor, token_ids: Sequence[int]) -> list[float]:
    """Return the logprob of one token per row of `logits` ([N, V]) at temperature 1, in nats."""
    ids = torch.tensor(token_ids, device=logits.device)[:, None]
    found: list[float] = torch.log_softmax(logits.float(), dim=-1).gather(1, ids)[:, 0].tolist()
    return found


def draw_tokens(logprobs: Tensor, seeds: Sequence[int], positions: Sequence[int]) -> Tensor:
    """Draw one token per row of `logprobs` ([N, V], normalised) by inverse CDF; [N] int64."""
    numbers = torch.from_numpy(uniforms(seeds, positions)).to(logprobs.device)
    return _inverse_cdf(logprobs, numbers)


def cut_logprobs(logprobs: Tensor, cuts: Mapping[int, Cut]) -> None:
    """Truncate some rows of `logprobs` ([N, V], normalised), and renormalise them."""
    cut = _tensors_of(cuts, logprobs)
    if cut is not None:
        _cut(logprobs, cut)


def _tensors_of(cuts: Mapping[int, Cut], of: Tensor) -> tuple[Tensor, Tensor, Tensor, int] | None:
    """Return the truncated rows ([M]), their token counts ([M, 1]) and probabilities ([M, 1] float64).

    The last result is how many of the most likely tokens to look at first.
    """
    if not cuts:
        return None
    size, ones = of.shape[1], list(cuts.values())
    most = [min(one.top_k, size) if one.top_k > 0 else size for one in ones]
    shares = [one.top_p if one.top_p < 1 else _NO_SHARE for one in ones]
    return (
        torch.from_numpy(np.array(list(cuts), dtype=np.int64)).to(of.device),
        torch.from_numpy(np.array(most, dtype=np.int64)[:, None]).to(of.device),
        torch.from_numpy(np.array(shares, dtype=np.float64)[:, None]).to(of.device),
        min(max(most), _CANDIDATES),
    )


# --- compiled on CPUs, see `backend.compute.compiled` --------------------


def _chosen(
    logits: Tensor,
    scale: Tensor | None,
    greedy: Tensor | None,
    cut: tuple[Tensor, Tensor, Tensor, int] | None,
    numbers: list[float],
) -> Tensor:
    """Return [2, N] float64, tokens and logprobs.

    Args:
        logits: [N, V], any float dtype.
        scale: [N], the divisor of each row; None divides none.
        greedy: Rows that take their most likely token.
        cut: See `_tensors_of`; None truncates none.
        numbers: N in [0, 1); a list, which is passed without releasing the GIL.
    """
    logits = logits.float()
    if scale is not None:
        logits = logits / scale[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    if cut is not None:
        _cut(logprobs, cut)
    drawn = torch.tensor(numbers, dtype=torch.float64, device=logits.device)
    tokens = _inverse_cdf(logprobs, drawn)
    if greedy is not None:
        tokens.index_copy_(0, greedy, logprobs.index_select(0, greedy).argmax(dim=-1))
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return torch.stack([tokens.double(), chosen.double()])


def _inverse_cdf(logprobs: Tensor, numbers: Tensor) -> Tensor:
    """Return the token at which the cumulative probability passes each number, in two stages.

    First the block of sqrt(V) tokens, then the token in it. Only the blocks' sums and one block are
    accumulated in float64: 2 sqrt(V) numbers per row instead of V. The blocks' sums are float32, like the
    logprobs, which moves up to some 1e-7 of a block's probability to its last token.
    """
    rows, size = logprobs.shape[0], logprobs.shape[1]
    width = int(math.sqrt(size - 1)) + 1
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
    # A block's float32 sum may slightly exceed the sum of its tokens.
    place = torch.searchsorted(within, _below(target - before, within[:, -1:]), right=True)
    return (block * width + place).clamp_(max=size - 1)[:, 0]


def _cut(logprobs: Tensor, cut: tuple[Tensor, Tensor, Tensor, int]) -> None:
    """Truncate rows of `logprobs` in place.

    Sorting a large vocabulary takes twenty times as long as finding its thousand most likely tokens, which
    usually suffice. The search returns how many tokens are kept and the probability of the last one, which
    does not depend on the order of equally likely ones; among tokens with that probability, lower ids are
    kept, as in a greedy choice.
    """
    rows, most, share, candidates = cut
    size = logprobs.shape[1]
    asked = logprobs.index_select(0, rows)
    last, count, enough = _last_left(asked, most, share, candidates)
    if not bool(enough.all()):
        others = torch.nonzero(~enough[:, 0])[:, 0]
        found, counted, _ = _last_left(
            asked.index_select(0, others), most.index_select(0, others), share.index_select(0, others), size
        )
        last.index_copy_(0, others, found)
        count.index_copy_(0, others, counted)
    left = asked >= last
    if bool((left.sum(dim=-1, keepdim=True) > count).any()):
        above = asked > last
        ties = asked == last
        left = above | (ties & (ties.cumsum(dim=-1) <= count - above.sum(dim=-1, keepdim=True)))
    asked = torch.log_softmax(asked.masked_fill(~left, float("-inf")), dim=-1)
    logprobs.index_copy_(0, rows, asked)


def _last_left(
    logprobs: Tensor, most: Tensor, share: Tensor, candidates: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Search each row's most likely tokens for the last one kept, by `top_k` and then `top_p`.

    Returns:
        [M, 1] each: its logprob, how many are kept with it, and whether there were enough candidates.
    """
    likeliest = logprobs.topk(candidates, dim=-1)[0]
    cumulated = likeliest.double().exp().cumsum(dim=-1)
    all_tokens = most == logprobs.shape[1]
    wanted = share * torch.where(all_tokens, 1.0, cumulated.gather(1, most.clamp(max=candidates) - 1))
    enough = (most <= candidates) | (all_tokens & (cumulated[:, -1:] >= wanted))
    # The first one at which the cumulative probability reaches the wanted value.
    count = torch.minimum(torch.searchsorted(cumulated, wanted) + 1, most).clamp(max=candidates)
    return likeliest.gather(1, count - 1), count, enough


def _below(numbers: Tensor, end: Tensor) -> Tensor:
    # There is no token at the end itself or beyond.
    return torch.minimum(numbers, torch.nextafter(end, torch.zeros_like(end)))


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = word ^ (word >> np.uint64(30))
    word = word * np.uint64(0xBF58476D1CE4E5B9)
    word = word ^ (word >> np.uint64(27))
    word = word * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
