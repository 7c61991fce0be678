"""A full-parameter policy whose weights, gradient and optimizer state are divided over ranks (FSDP2).

Each of n ranks stores an n-th of every layer. A layer is gathered for computing and freed afterwards;
gradients are summed over the ranks and divided in one operation. torch's `fully_shard` does both.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from backend.compute.weights import weights_sha256
from backend.learner.activations import layers_of
from backend.learner.causal_lm import CausalLM
from backend.learner.policy_weights import FullPolicy
from backend.learner.sequences import TrainSequence
from tinkergym.schema.jobs.parts import FullParameters


class DividedPolicy(FullPolicy):
    """A separate model, of which each rank has a part. All ranks must make the same calls."""

    def __init__(
        self, lm: CausalLM, adapter: FullParameters, mesh: DeviceMesh, *, compute_dtype: torch.dtype
    ) -> None:
        """Divide a model that is complete and equal on each rank.

        Args:
            lm: The model, in float32.
            adapter: Full parameters.
            mesh: The ranks.
            compute_dtype: Type of the gathered layers; parts and gradients stay float32.
        """
        precision = MixedPrecisionPolicy(
            param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        trunk = _Trunk(lm)
        for layer in layers_of(lm.decoder):
            fully_shard(layer, mesh=mesh, mp_policy=precision)
        # Embedding, last norm and output head: the head computes after the trunk's forward pass has ended.
        self._trunk = fully_shard(trunk, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
        for module in trunk.modules():
            if isinstance(module, FSDPModule):
                # Gradients are summed, because each rank divides by the totals of the whole batch. Gloo has
                # no mean.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
                # A weight that only some ranks use counts as zero on the others.
                module.set_reduce_scatter_unused_params(True)
        lm.run_through(trunk)
        super().__init__(lm, adapter)
        self._blank = lm.batches(
            [TrainSequence(token_ids=[0, 0], loss_mask=[False, True], sampling_logprobs=[None, 0.0])],
            max_tokens=2,
        )[0][0]

    def turns(self, own: int) -> int:
        """Return the largest number of turns of any rank."""
        most = torch.tensor([own], device=self.lm.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return int(most.item())

    def idle(self, *, gradient: bool) -> None:
        """Take part in a turn in which only other ranks have something to compute."""
        with torch.set_grad_enabled(gradient):
            nothing = self.lm.logits(self.lm.features(self._blank)).sum() * 0.0
        if gradient:
            nothing.backward()  # type: ignore[no-untyped-call]

    def release(self) -> None:
        """Free layers that a forward pass without a backward pass left gathered."""
        self._trunk.reshard()

    def sha256(self) -> str:
        """Hash the weights on the first rank, which sends the hash to the others."""
        weights = self.weights()
        told = [weights_sha256(weights) if dist.get_rank() == 0 else ""]
        dist.broadcast_object_list(told, src=0)
        return told[0]


class _Trunk(nn.Module):
    """A model for `fully_shard`, which requires that weights are used in the forward pass of a module."""

    def __init__(self, lm: CausalLM) -> None:
        super().__init__()
        self.model = lm.model
        self._run = lm.run

    def forward(self, **inputs: Any) -> torch.Tensor:
        """See `CausalLM.run`."""
        return self._run(**inputs)
