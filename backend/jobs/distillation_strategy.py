"""On-policy distillation: how a job learns from episodes that a teacher scores, token by token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from backend.episodes.played import Played, trained_seats
from backend.jobs.job_context import JobContext
from backend.jobs.learn_phase import Learned
from backend.jobs.run_evidence import Source
from backend.jobs.strategy import Strategy
from backend.jobs.turn_rewards import counts
from backend.jobs.update import update
from backend.learner.sequences import FloatArray, TrainSequence
from backend.learner.token_loss import policy_loss
from backend.policies.parity import parity
from backend.policies.trained_policy import FrozenPolicy
from tinkergym.advantages import distillation_advantages
from tinkergym.schema.jobs.distillation import DistillationSpec

_LOSS = policy_loss(loss="importance_sampling")


class Distillation(Strategy):
    """The strategy of a distillation job: a teacher scores the student's tokens."""

    def __init__(self) -> None:
        self._teacher: FrozenPolicy | None = None

    def open(self, context: JobContext[DistillationSpec]) -> None:
        """Load the teacher."""
        self._teacher = context.policy.open_teacher(context.spec.teacher)

    def close(self) -> None:
        """Release the teacher."""
        if self._teacher is not None:
            self._teacher.close()

    def learn(self, context: JobContext[DistillationSpec], step: int, played: Played) -> Learned:
        """Update the student with the teacher's scores of its valid episodes."""
        spec = context.spec
        settings = spec.optimizer_step(step, spec.steps)
        sources = [
            Source(seat, number)
            for seat in trained_seats(played)
            if counts(spec, seat.trajectory)
            for number, segment in enumerate(seat.trajectory.segments)
            if any(segment.loss_mask)
        ]
        sampled = [
            TrainSequence.from_segment(
                seat.trajectory.segments[number], advantage=0.0, temperature=spec.sampling.temperature
            )
            for seat, number in sources
        ]
        if not sampled:
            return Learned(loss=None, metrics={"learning_rate": settings["learning_rate"]}, trained_tokens=0)
        with context.clock.part("teacher"):
            sequences, metrics = self._judged(sampled)

        def compare(logprobs: list[FloatArray]) -> None:
            allowed = context.parity_threshold
            agreement = parity(allowed, sequences, logprobs)
            metrics.update(agreement)
            with context.clock.part("certificate"):
                context.policy.note_agreement(step - 1, agreement, sequences, logprobs, allowed=allowed)
                context.evidence.trained(sources, sequences)
                context.evidence.compared(step, sources, sequences, logprobs)

        # Only before the first update, the policy is the one that sampled.
        first = update(context, sequences, _LOSS, settings, before_step=compare)
        metrics |= first.metrics  # A spike in it is kept, whatever the others show.
        skipped = int(first.skipped)
        for _ in range(spec.updates_per_step - 1):
            later = update(context, sequences, _LOSS, settings)
            metrics |= later.metrics
            skipped += later.skipped
        metrics["skipped_updates"] = float(skipped)
        return Learned(loss=first.loss, metrics=metrics, trained_tokens=first.tokens)

    def _judged(self, sampled: list[TrainSequence]) -> tuple[list[TrainSequence], dict[str, float]]:
        """Return the sequences with the teacher's advantages, and the totals."""
        assert self._teacher is not None
        judged, every = [], []
        for sequence, teacher in zip(sampled, self._teacher.logprobs(sampled), strict=True):
            places = np.flatnonzero(np.asarray(sequence.loss_mask, dtype=bool))
            own = np.asarray(
                [sequence.sampling_logprobs[place] for place in places.tolist()], dtype=np.float64
            )
            advantages = np.zeros(len(sequence.token_ids))
            advantages[places] = distillation_advantages(own, teacher)
            judged.append(replace(sequence, advantage=advantages.tolist()))
            every.append(advantages[places])
        together = np.concatenate(every)
        return judged, {
            "reverse_kl": float(-together.mean()),
            "teacher_gap_max": float(np.abs(together).max()),
        }
