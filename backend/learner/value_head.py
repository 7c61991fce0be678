"""A policy's value head: the expected further return, computed from the state at each sampled token.

Trained with the policy and stored in its checkpoints, but not part of its weights: engines and exports do not
include it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from backend.learner.batching import MicroBatch
from backend.learner.sequences import FloatArray, SampledTokens
from tinkergym.errors import ConflictError

if TYPE_CHECKING:
    from backend.learner.causal_lm import CausalLM

_WEIGHT, _BIAS = "value_head.weight", "value_head.bias"


class ValueHead:
    """A linear function of the model's last hidden state, float32, initially zero.

    The state is divided by its width, so an optimizer step changes a value by about its learning rate, in
    units of return, regardless of the model's width.
    """

    def __init__(self, hidden: int, *, device: torch.device) -> None:
        self._weight = nn.Parameter(torch.zeros(1, hidden, dtype=torch.float32, device=device))
        self._bias = nn.Parameter(torch.zeros(1, dtype=torch.float32, device=device))
        self.parameters: Mapping[str, nn.Parameter] = {_WEIGHT: self._weight, _BIAS: self._bias}
        """The trained parameters, by the names under which they are saved."""

    def values(self, states: torch.Tensor) -> torch.Tensor:
        """Return the values of some states.

        Args:
            states: [U, hidden], as `CausalLM.features_and_states` returns them.

        Returns:
            [U] float32, in units of return.
        """
        return F.linear(states.float() / states.shape[-1], self._weight, self._bias).squeeze(-1)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return copies of the parameters, on the CPU."""
        return {name: p.detach().to("cpu", copy=True) for name, p in self.parameters.items()}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load what `tensors` returned.

        Raises:
            ConflictError: It belongs to a model of a different width.
        """
        if {n: t.shape for n, t in tensors.items()} != {n: p.shape for n, p in self.parameters.items()}:
            raise ConflictError(
                "the saved value head does not fit the model's hidden states",
                hint="serve the model the job started with, under the same name",
            )
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[name])


class ValuePass:
    """The values of a batch's sampled tokens, micro-batch by micro-batch, without the output head."""

    def __init__(self, lm: CausalLM, tokens: SampledTokens, head: ValueHead) -> None:
        self._lm, self._tokens, self._head = lm, tokens, head
        self._values = np.zeros(int(tokens.counts.sum()), dtype=np.float32)

    def run(self, batch: MicroBatch, *, gradient: bool) -> None:
        """Compute a micro-batch, without a gradient."""
        assert not gradient
        with torch.no_grad():
            values = self._head.values(self._lm.states(batch)).cpu().numpy()
        self._values[batch.slots] = values[batch.prediction_of]  # [P]

    def add(self, found: None) -> None:
        """Do nothing: `run` has already stored the values."""

    @property
    def values(self) -> list[FloatArray]:
        """Values per sequence, in input order: one per sampled token, for the state before it."""
        return self._tokens.split(self._values)
