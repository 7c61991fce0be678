"""Draw tokens from logits, each with its own seed.

The token depends only on the request's seed, the token's position and the logits: not on other requests in
the batch, their order, or earlier draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.compute.cpu.compiled import compiled
from backend.compute.cpu.token_choice import chosen, cut_rows, inverse_cdf

_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio, made odd: the step of the generator SplitMix64."""

_CANDIDATES = 1024
"""Number of likely tokens sorted first, which usually include what `top_p` keeps."""

_NO_SHARE = 2.0
"""More than the total probability of all tokens."""


class Cut(Protocol):
    """The truncation of a distribution; a `SampleRequest` is one."""

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
    choose = compiled(chosen) if logits.device.type == "cpu" else chosen
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
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)  # [N, V]
    cut_logprobs(logprobs, {row: one for row, one in (cuts or {}).items() if temperatures[row]})
    values, ids = logprobs.topk(min(max(counts), logprobs.shape[1]), dim=-1)
    return [
        [(token, value) for token, value in zip(*row, strict=True) if math.isfinite(value)][:count]
        for *row, count in zip(ids.tolist(), values.tolist(), counts, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What is known of some tokens, one per row of logits, at temperature 1."""

    logprobs: list[float]
    """In nats."""
    ranks: list[int]
    """1 is the likeliest."""
    likeliest: list[list[tuple[int, float]]]
    """In each row the most likely tokens with their logprobs; empty unless wanted."""
    entropies: list[float]
    """Of each row, in nats; empty unless wanted."""

    def __getitem__(self, rows: slice) -> TokenScores:
        """Return those of some rows."""
        return TokenScores(self.logprobs[rows], self.ranks[rows], self.likeliest[rows], self.entropies[rows])


def scores_of(
    logits: Tensor, token_ids: Sequence[int], *, likeliest: int = 0, with_entropies: bool = False
) -> TokenScores:
    """Return the scores of one token per row of `logits` ([N, V]).

    Args:
        logits: In any float dtype.
        token_ids: N numbers.
        likeliest: How many most likely tokens are wanted per row.
        with_entropies: Whether entropies are wanted.
    """
    logprobs = torch.log_softmax(logits.float(), dim=-1)  # [N, V]
    own = logprobs.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])  # [N, 1]
    values, ids = logprobs.topk(min(likeliest, logprobs.shape[1]), dim=-1)
    entropies = torch.special.entr(logprobs.exp()).sum(dim=-1).tolist() if with_entropies else []
    return TokenScores(
        own[:, 0].tolist(),
        ((logprobs > own).sum(dim=-1) + 1).tolist(),
        [list(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)],
        entropies,
    )


def draw_tokens(logprobs: Tensor, seeds: Sequence[int], positions: Sequence[int]) -> Tensor:
    """Draw one token per row of `logprobs` ([N, V], normalised) by inverse CDF; [N] int64."""
    numbers = torch.from_numpy(uniforms(seeds, positions)).to(logprobs.device)
    return inverse_cdf(logprobs, numbers)


def cut_logprobs(logprobs: Tensor, cuts: Mapping[int, Cut]) -> None:
    """Truncate some rows of `logprobs` ([N, V], normalised), and renormalise them."""
    cut = _tensors_of(cuts, logprobs)
    if cut is not None:
        cut_rows(logprobs, cut)


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


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = word ^ (word >> np.uint64(30))
    word = word * np.uint64(0xBF58476D1CE4E5B9)
    word = word ^ (word >> np.uint64(27))
    word = word * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
