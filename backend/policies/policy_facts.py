"""Facts about a policy's publishes, for the certificate of its run.

Collected in memory; the job's loop writes them with its next step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from backend.compute.weights import AdapterWeights, PolicyWeights
from backend.learner.sequences import FloatArray, TrainSequence
from backend.store.stored_facts import Fact
from tinkergym.schema.certificate import AdapterFacts, AgreementFacts, PublishFacts

MOST_COMPARED = 2
"""Sequences by which the policy is compared with its initial policy; only once, because it costs a forward
pass."""


class PolicyFacts:
    """Records publishes, comparisons and the first change of one policy in one attempt."""

    def __init__(self, agent: str, attempt: int) -> None:
        self._agent, self._attempt = agent, attempt
        self._facts: list[Fact] = []
        self._changed: AdapterFacts | None = None
        """The first version with a non-zero adapter, until its effect is measured."""
        self._has_changed = False

    def take(self) -> list[Fact]:
        """Return the facts since the last call."""
        facts, self._facts = self._facts, []
        return facts

    def published(self, version: int, weights: PolicyWeights, sha256: str) -> None:
        """Record that a version arrived in the engine unchanged."""
        seen = PublishFacts(agent=self._agent, version=version, attempt=self._attempt, weights_sha256=sha256)
        self._add("publish", version, seen)
        if version and not self._has_changed and isinstance(weights, AdapterWeights):
            self._record_change(version, weights)

    def agreed(
        self, version: int, metrics: Mapping[str, float], *, tokens: int, by_probe: bool, allowed: float
    ) -> None:
        """Record a comparison of learner and engine by tokens of a version.

        Args:
            version: The version.
            metrics: `parity_mean` and `parity_max`; without them nothing was compared.
            tokens: Number of tokens.
            by_probe: Whether they were sampled for the comparison.
            allowed: Mean difference in nats.
        """
        if "parity_mean" not in metrics:
            return
        seen = AgreementFacts(
            agent=self._agent,
            version=version,
            attempt=self._attempt,
            mean=metrics["parity_mean"],
            largest=metrics["parity_max"],
            tokens=tokens,
            by="probe" if by_probe else "episodes",
            allowed=allowed,
        )
        self._add("agreement", version, seen)

    def wants_effect_of(self, version: int) -> bool:
        """Whether this version is the first that changed, and its effect is not measured yet."""
        return self._changed is not None and self._changed.version == version

    def effect(
        self,
        sequences: Sequence[TrainSequence],
        learner_logprobs: Sequence[FloatArray],
        without: Sequence[FloatArray],
    ) -> None:
        """Record the effect of the first non-zero adapter on logprobs.

        Args:
            sequences: Sampled by the engine with that version.
            learner_logprobs: For their sampled tokens, by that version.
            without: By the initial policy.
        """
        assert self._changed is not None
        before = np.concatenate(without)  # [P]
        sampled = np.asarray(
            [p for own in sequences for p in own.sampling_logprobs if p is not None], dtype=np.float32
        )
        seen = self._changed.model_copy(
            update={
                "learner_shift": float(np.abs(np.concatenate(learner_logprobs) - before).mean()),
                "engine_shift": float(np.abs(sampled - before).mean()),
                "tokens": len(before),
            }
        )
        self._changed = None
        self._add("adapter", seen.version, seen)

    def _record_change(self, version: int, weights: AdapterWeights) -> None:
        # A new adapter begins with zeros in B, and changes nothing until these change.
        own = [tensor for name, tensor in weights.tensors.items() if ".lora_B." in name]
        norms = [float(torch.linalg.vector_norm(tensor)) for tensor in own]
        if not any(norms):
            return
        self._has_changed = True
        self._changed = AdapterFacts(
            agent=self._agent,
            version=version,
            attempt=self._attempt,
            tensors=len(own),
            nonzero_tensors=sum(norm > 0 for norm in norms),
            norm=math.hypot(*norms),
        )
        self._add("adapter", version, self._changed)

    def _add(self, kind: str, version: int, seen: PublishFacts | AgreementFacts | AdapterFacts) -> None:
        self._facts.append(
            Fact(kind=kind, agent=self._agent, number=version, attempt=self._attempt, body=seen)  # type: ignore[arg-type]
        )
