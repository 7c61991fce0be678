"""One pass of a training batch through a model: the loss's gradient, the logprobs, and metrics.

It uses the model and the loss; the caller sets the model's weights and holds the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from backend.learner.batching import MicroBatch
from backend.learner.causal_lm import CausalLM, sampled_logprobs
from backend.learner.pass_results import BatchPart, ForwardBackwardResult
from backend.learner.sequences import FloatArray, SampledTokens
from backend.learner.token_loss import TokenLoss, token_entropies
from backend.learner.value_head import ValueHead
from tinkergym.policy_losses import LossTokens, TokenLosses

_HEAD_ELEMENTS = 2**22
"""Limit for logits in memory at once, so memory does not grow with the vocabulary."""
_HEAD_ROWS = 256
"""Minimum rows of logits computed at once; fewer would make matrix products slow."""
_LARGEST_GAP = 80.0
"""Nats; a ratio beyond this is not a finite float, which events require."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Results of a micro-batch, except its logprobs."""

    loss: float
    shares: dict[str, float]
    largest: dict[str, float]
    input_tokens: int
    computed_tokens: int
    gradients: list[torch.Tensor | None]
    """Gradients of the parameters whose gradients are kept separate."""


class TrainPass:
    """The sampled tokens of a training batch, and the results for each, micro-batch by micro-batch.

    Several threads may run one micro-batch each; one thread adds the results in the order of the
    micro-batches, so the order of completion has no effect, not even in the last bit.
    """

    def __init__(
        self,
        lm: CausalLM,
        tokens: SampledTokens,
        *,
        weights: FloatArray | None,
        loss: TokenLoss | None,
        aside: Sequence[torch.Tensor] = (),
        into: Sequence[torch.nn.Parameter] = (),
        workers: int = 1,
        value_head: ValueHead | None = None,
    ) -> None:
        """Create a pass.

        Args:
            lm: The model.
            tokens: The batch's tokens.
            weights: Weight of each token's loss; None, like `loss`, if only logprobs are wanted.
            loss: The loss.
            aside: Everything with a gradient, if several threads run micro-batches, or if these are not the
                parameters themselves: a micro-batch's gradient is then kept separate until `add`.
            into: The trained parameters, in the same order, to whose gradients `add` adds it.
            workers: Number of these threads, which share the memory for logits.
            value_head: The policy's; used if the tokens have value targets.
        """
        self._lm = lm
        self._tokens = tokens
        self._token_loss = loss
        self._value_head = None if tokens.value_targets is None else value_head
        self._sampling_logprobs = torch.from_numpy(tokens.sampling_logprobs).to(lm.device)
        self._advantages = torch.from_numpy(tokens.advantages).to(lm.device)
        self._weights = None if weights is None else torch.from_numpy(weights).to(lm.device)
        self._learner_logprobs = np.zeros(len(tokens.sampling_logprobs), dtype=np.float32)
        self._extras = {
            name: None if values is None else torch.from_numpy(values).to(lm.device)
            for name, values in (
                ("proximal_logprobs", tokens.proximal_logprobs),
                ("reference_logprobs", tokens.reference_logprobs),
                ("value_targets", tokens.value_targets),
                ("old_values", tokens.old_values),
            )
        }
        self._sequence_of = tokens.sequence_of
        self._aside, self._into = list(aside), list(into)
        self._head_rows = max(_HEAD_ROWS, _HEAD_ELEMENTS // lm.vocabulary) // workers
        self._sequence_sums: dict[str, FloatArray] = {}
        """Per-token inputs of a loss that reads sequences, by name; filled per micro-batch."""
        if loss is not None and loss.reads_sequences:
            names = "sequence_gaps", "sequence_log_ratios"
            self._sequence_sums = {name: np.zeros_like(self._learner_logprobs) for name in names}
        self._loss = 0.0
        self._shares: dict[str, float] = {}
        self._largest: dict[str, float] = {}
        self._input_tokens = 0
        self._computed_tokens = 0

    @property
    def learned(self) -> npt.NDArray[np.bool_]:
        """[number of sequences], False if every advantage, and therefore the gradient, is 0."""
        if self._token_loss is not None and not self._token_loss.silent_without_advantage:
            return np.ones(len(self._tokens.counts), dtype=bool)
        return np.asarray([part.any() for part in self._tokens.split(self._tokens.advantages)], dtype=bool)

    @property
    def learner_logprobs(self) -> list[FloatArray]:
        """Logprobs per sequence, of the sampled tokens of all micro-batches run so far."""
        return self._tokens.split(self._learner_logprobs)

    def run(self, batch: MicroBatch, *, gradient: bool) -> Found:
        """Compute a micro-batch's logprobs and, if `gradient`, its part of the loss's gradient."""
        lm = self._lm
        loss, shares, largest = 0.0, dict[str, float](), dict[str, float]()
        gradients: list[torch.Tensor | None] = [None for _ in self._aside]
        with torch.set_grad_enabled(gradient):
            if self._value_head is None:
                features = states = lm.features(batch)
            else:
                features, states = lm.features_and_states(batch)
            # The head runs on a detached copy, some rows at a time: its gradient is collected there and then
            # sent through the decoder once, so only a slice of the logits exists at a time.
            leaves = [features.detach().requires_grad_(gradient)]  # [U, hidden or vocabulary]
            if states is not features:
                leaves.append(states.detach().requires_grad_(gradient))
            rows = max(self._head_rows, 1)
            slices = [(start, start + rows) for start in range(0, len(batch.predictions), rows)]
            if gradient and self._token_loss is not None and self._token_loss.reads_sequences:
                # A sequence's ratio needs the logprobs of all its tokens, which the head computes in several
                # slices.
                with torch.no_grad():
                    for start, stop in slices:
                        self._run_head([features.detach()], batch, start, min(stop, len(batch.predictions)))
                self._sum_up_sequences(batch)
            for start, stop in slices:
                said = self._run_head(leaves, batch, start, min(stop, len(batch.predictions)))
                if said is None:
                    continue
                part, tokens = said
                loss += float(part.detach())
                for name, share in tokens.shares.items():
                    shares[name] = shares.get(name, 0.0) + float(share.sum())
                for name, numbers in tokens.largest.items():
                    if len(numbers):
                        largest[name] = max(largest.get(name, -np.inf), float(numbers.max()))
                self._send_back([part], [None], leaves, gradients)
            if gradient:
                self._send_back(
                    [features, states][: len(leaves)], [leaf.grad for leaf in leaves], [], gradients
                )
        return Found(
            loss=loss,
            shares=shares,
            largest=largest,
            input_tokens=batch.input_tokens,
            computed_tokens=len(batch.token_ids) if lm.shares_prefixes else batch.node_of.size,
            gradients=gradients,
        )

    def _send_back(
        self,
        outputs: list[torch.Tensor],
        into_outputs: list[torch.Tensor | None],
        leaves: list[torch.Tensor],
        gradients: list[torch.Tensor | None],
    ) -> None:
        """Send gradients through the graph, to its inputs and to the parameters or the separate gradients."""
        if not self._aside:
            torch.autograd.backward(outputs, into_outputs)
            return
        found = torch.autograd.grad(outputs, [*leaves, *self._aside], into_outputs, allow_unused=True)
        for leaf, new in zip(leaves, found, strict=False):
            leaf.grad = _sum(leaf.grad, new)
        gradients[:] = [_sum(*pair) for pair in zip(gradients, found[len(leaves) :], strict=True)]

    def add(self, found: Found) -> None:
        """Add the results of a micro-batch, and its gradient to the parameters'."""
        self._loss += found.loss
        for name, share in found.shares.items():
            self._shares[name] = self._shares.get(name, 0.0) + share
        for name, number in found.largest.items():
            self._largest[name] = max(self._largest.get(name, -np.inf), number)
        self._input_tokens += found.input_tokens
        self._computed_tokens += found.computed_tokens
        with torch.no_grad():
            for parameter, gradient in zip(self._into, found.gradients, strict=True):
                if gradient is None:
                    continue
                if parameter.grad is None:
                    # A copy in the parameter's layout: several of autograd's tensors may share their memory,
                    # and fused optimizers assume that every gradient has it.
                    parameter.grad = torch.empty_like(parameter).copy_(gradient)
                else:
                    parameter.grad.add_(gradient)

    def _run_head(
        self, leaves: Sequence[torch.Tensor], batch: MicroBatch, start: int, stop: int
    ) -> tuple[torch.Tensor, TokenLosses] | None:
        """Store logprobs; return the loss of their tokens, with gradient, and its metrics."""
        lm = self._lm
        features, states = leaves[0], leaves[-1]
        # `prediction_of` ascends, so the sampled tokens of these rows are neighbours.
        first, last = np.searchsorted(batch.prediction_of, [start, stop])
        at = batch.temperatures[start:stop]
        # A division by 1 everywhere would be another pass over all logits.
        temperatures = None if (at == 1.0).all() else torch.from_numpy(at).to(lm.device)
        table = sampled_logprobs(lm.logits(features[start:stop]), temperatures)  # [rows, vocabulary]
        drawn_from = torch.from_numpy(batch.prediction_of[first:last] - start).to(lm.device)
        targets = torch.from_numpy(batch.targets[first:last]).to(lm.device)
        logprobs = table[drawn_from, targets]  # [tokens of these rows]
        self._learner_logprobs[batch.slots[first:last]] = logprobs.detach().cpu().numpy()
        if not features.requires_grad or self._weights is None or self._token_loss is None:
            return None
        slots = torch.from_numpy(batch.slots[first:last]).to(lm.device)
        values = None
        if self._value_head is not None:
            values = self._value_head.values(states[start:stop])[drawn_from]
        found = self._token_loss.token_losses(
            LossTokens(
                learner_logprobs=logprobs,
                sampling_logprobs=self._sampling_logprobs[slots],
                advantages=self._advantages[slots],
                values=values,
                **{k: None if v is None else v[slots] for k, v in self._extras.items()},
                **{
                    k: torch.from_numpy(v[batch.slots[first:last]]).to(lm.device)
                    for k, v in self._sequence_sums.items()
                },
            )
        )
        losses = found.losses
        if self._token_loss.entropy_coefficient:
            losses = losses - self._token_loss.entropy_coefficient * token_entropies(table)[drawn_from]
        return (losses * self._weights[slots]).sum(), found

    def _sum_up_sequences(self, batch: MicroBatch) -> None:
        """Compute each sequence's mean gap and log ratio; a sequence is never split over micro-batches."""
        slots, tokens = batch.slots, self._tokens
        own, inverse = np.unique(self._sequence_of[slots], return_inverse=True)  # [sequences], [P]
        inverse = inverse.reshape(-1)
        # Sums over whole sequences: in float32, thousands of tokens would add up their rounding.
        learner = self._learner_logprobs[slots].astype(np.float64)
        sampling = tokens.sampling_logprobs[slots].astype(np.float64)
        proximal = learner if tokens.proximal_logprobs is None else tokens.proximal_logprobs[slots]
        corrected = self._token_loss is not None and self._token_loss.corrects
        gaps = np.bincount(inverse, learner - (proximal if corrected else sampling)) / tokens.counts[own]
        ratios = np.bincount(inverse, proximal - sampling)  # [sequences]
        for name, values in (("sequence_gaps", gaps), ("sequence_log_ratios", ratios)):
            self._sequence_sums[name][slots] = values[inverse]

    def result(self) -> ForwardBackwardResult:
        """Combine the results, after all micro-batches have run."""
        learner = self._learner_logprobs.astype(np.float64)
        gap = learner - self._tokens.sampling_logprobs
        judged = int(self._tokens.counts[self.learned].sum())
        part = BatchPart(tokens=len(gap), judged_tokens=judged, metrics={})
        metrics = {
            "ratio_mean": float(np.exp(np.minimum(gap, _LARGEST_GAP)).mean()),
            "ratio_max": float(np.exp(np.minimum(gap, _LARGEST_GAP)).max()),
            "logprob_gap_max": float(np.abs(gap).max()),
            "logprob_gap_mean": float(np.abs(gap).mean()),
            "sampled_entropy": float(-learner.mean()),
            "shared_fraction": 1.0 - self._computed_tokens / self._input_tokens,
            **{name: total / part.tokens_behind(name) for name, total in self._shares.items()},
            **self._largest,
        }
        return ForwardBackwardResult(
            loss=self._loss,
            learner_logprobs=self.learner_logprobs,
            metrics=metrics,
            judged_tokens=judged,
        )


def _sum(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
