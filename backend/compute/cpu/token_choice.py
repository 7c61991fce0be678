"""Choosing tokens by given random numbers, as functions of tensors that `compiled` can compile."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def chosen(
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
        cut: Rows to truncate, and their settings, see `cut_rows`; None truncates none.
        numbers: N in [0, 1); a list, which is passed without releasing the GIL.
    """
    logits = logits.float()
    if scale is not None:
        logits = logits / scale[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    if cut is not None:
        cut_rows(logprobs, cut)
    drawn = torch.tensor(numbers, dtype=torch.float64, device=logits.device)
    tokens = inverse_cdf(logprobs, drawn)
    if greedy is not None:
        tokens.index_copy_(0, greedy, logprobs.index_select(0, greedy).argmax(dim=-1))
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return torch.stack([tokens.double(), chosen.double()])


def inverse_cdf(logprobs: Tensor, numbers: Tensor) -> Tensor:
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
    probabilities = probabilities.view(rows, blocks, width)  # the last block is padded with zeros
    cumulated = probabilities.sum(dim=-1).double().cumsum(dim=-1)  # [rows, blocks]
    target = _below(numbers[:, None] * cumulated[:, -1:], cumulated[:, -1:])
    block = torch.searchsorted(cumulated, target, right=True).clamp_(max=blocks - 1)
    before = torch.where(block > 0, cumulated.gather(1, (block - 1).clamp_(min=0)), 0.0)

    chosen = probabilities.gather(1, block[:, :, None].expand(-1, -1, width))[:, 0]  # [rows, width]
    within = chosen.double().cumsum(dim=-1)
    # A block's float32 sum may slightly exceed the sum of its tokens.
    place = torch.searchsorted(within, _below(target - before, within[:, -1:]), right=True)
    return (block * width + place).clamp_(max=size - 1)[:, 0]


def cut_rows(logprobs: Tensor, cut: tuple[Tensor, Tensor, Tensor, int]) -> None:
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
    likeliest = logprobs.topk(candidates, dim=-1)[0]  # [M, candidates], falling
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
