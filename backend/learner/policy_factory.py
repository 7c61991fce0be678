"""Makes policies on a base model, with their optimizer and value head.

Invariant: what cannot be made completely leaves nothing in the base model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from backend.learner.loaded_model import LoadedModel, is_exact
from backend.learner.policy_optimizer import PolicyOptimizer
from backend.learner.policy_weights import FullPolicy, LoraPolicy, MasteredPolicy
from backend.learner.training_states import TrainingState
from backend.learner.value_head import ValueHead
from tinkergym.schema.jobs.parts import FullParameters, LoRA
from tinkergym.schema.optimizer import AdamW

MakeFull = Callable[[LoadedModel, str, FullParameters], FullPolicy | None]
"""Makes a full-parameter policy with a directory's weights in another way; None leaves it to the factory."""


@dataclass(slots=True)
class PolicyFactory:
    """Callers hold the device's lock."""

    base: LoadedModel
    make_full: MakeFull | None = None
    _made: int = field(default=0)

    def make(
        self,
        adapter: LoRA | FullParameters,
        *,
        seed: int,
        model_dir: str | None,
        value_head: bool,
        optimizer: AdamW,
    ) -> TrainingState:
        """Make an untrained policy.

        Args:
            adapter: Which parameters are trained.
            seed: Seed for an adapter's initial weights.
            model_dir: Directory with the weights of a full-parameter policy; None means the base model's.
            value_head: Whether it has a value head (initially 0).
            optimizer: Settings of the optimizer.

        Raises:
            InvalidRequestError: The adapter names layers that the model does not have.
            MissingExtraError: The optimizer needs a package that is not installed.
        """
        policy: LoraPolicy | FullPolicy
        if isinstance(adapter, LoRA):
            name = f"policy_{self._made}"  # not the id: module names must not contain dots
            policy = LoraPolicy(self.base.lm, self.base.adapters, name, adapter, seed=seed)
        else:
            policy = self._full_policy(model_dir or self.base.path, adapter)
        self._made += 1
        try:
            head = ValueHead(policy.lm.hidden_size, device=self.base.lm.device) if value_head else None
            stepping = PolicyOptimizer(policy.parameters, head.parameters if head else None, optimizer)
        except BaseException:
            policy.drop()
            raise
        return TrainingState(policy, stepping, head)

    def _full_policy(self, model_dir: str, adapter: FullParameters) -> FullPolicy:
        made = self.make_full(self.base, model_dir, adapter) if self.make_full else None
        if made is not None:
            return made
        lm = self.base.separate(model_dir, self.base.dtype)
        if is_exact(self.base.dtype):
            return FullPolicy(lm, adapter)
        # From the files again: the model's own weights are rounded to its dtype.
        masters = self.base.separate(model_dir, torch.float32).model.named_parameters()
        return MasteredPolicy(lm, adapter, {name: master.detach().clone() for name, master in masters})
