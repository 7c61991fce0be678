"""A policy that a job trains, on a pool's learner and engine; `TrainedPolicy` says what its calls mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Unpack

from pydantic import JsonValue

from backend.compute.weights import hash_aside
from backend.learner.forward_backward import PolicyBatch
from backend.learner.pass_results import ForwardBackwardResult, OptimStepResult
from backend.learner.sequences import BatchTotals, FloatArray, TokenLimits, TrainSequence
from backend.learner.token_loss import TokenLoss
from backend.policies import parity
from backend.policies.checkpoint_keeping import CheckpointKeeping
from backend.policies.policy_binding import PolicyBinding
from backend.policies.policy_facts import MOST_COMPARED, PolicyFacts
from backend.policies.publishing import TakenWeights, publish
from backend.policies.teacher import open_teacher
from backend.policies.trained_policy import FrozenPolicy, PolicyPart, StepChange, TrainedPolicy
from backend.store.stored_facts import Fact
from tinkergym.schema.events import CheckpointView
from tinkergym.schema.optimizer import OptimizerStep


class PoolPolicy:
    """One policy of a job. Calls are made one after the other, from the job's thread."""

    def __init__(self, bound: PolicyBinding) -> None:
        self._bound = bound
        self._learner, self._engine = bound.learner, bound.pool.engine
        self._checkpoints = CheckpointKeeping(bound)
        self._change = StepChange()
        self.id = bound.policy_id
        self._policy_facts = PolicyFacts(bound.agent, bound.lease.attempt)

    # --- its life ---

    def restore(self, at_most: int | None = None) -> int:
        """See `TrainedPolicy`."""
        bound = self._bound
        bound.pool.directory.hold(
            self.id,
            job_id=bound.lease.job_id,
            agent=bound.agent,
            from_base=not bound.lease.spec.for_agent(bound.agent).initial_policy,
            by_calls=bound.lease.spec.by_calls,
        )
        return self._checkpoints.restore(at_most)

    def release(self) -> None:
        """Leave the last published version for sampling until it is evicted."""
        self._bound.pool.directory.release(self.id)

    def forget(self) -> None:
        """Free the learner's memory for it."""
        self._checkpoints.forget()

    # --- training ---

    @property
    def limits(self) -> TokenLimits:
        """Limits of the model."""
        return self._learner.limits

    @property
    def learning_seconds(self) -> float:
        """Seconds in which the learner worked, for any policy; increases monotonically."""
        return self._learner.busy_seconds

    @property
    def is_changing(self) -> bool:
        """Whether the policy is no longer that of the last finished step, or may not be."""
        return self._change.begun

    def step_finished(self) -> None:
        """Record that a step is done: the current policy counts as its version."""
        self._change.finished()

    def forward_backward(
        self, sequences: Sequence[TrainSequence], loss: TokenLoss, *, totals: BatchTotals | None = None
    ) -> ForwardBackwardResult:
        """Add the gradient of the batch's loss to the pending gradient; see `Learner`."""
        return self._learner.forward_backward(self.id, sequences, loss, totals=totals)

    def forward_backward_together(self, parts: Mapping[str, PolicyPart]) -> dict[str, ForwardBackwardResult]:
        """See `TrainedPolicy`: one call to each learner that has more than one of the policies."""
        results: dict[str, ForwardBackwardResult] = {}
        by_learner: dict[int, list[str]] = {}
        policies = {key: _of_pool(part.policy) for key, part in parts.items()}
        for key, policy in policies.items():
            by_learner.setdefault(id(policy._learner), []).append(key)
        for keys in by_learner.values():
            learner = policies[keys[0]]._learner
            if len(keys) == 1:
                found = {
                    key: policies[key].forward_backward(parts[key].sequences, parts[key].loss) for key in keys
                }
            else:
                batches = {
                    policies[key].id: PolicyBatch(sequences=parts[key].sequences, loss=parts[key].loss)
                    for key in keys
                }
                by_id = learner.forward_backward_many(batches)
                found = {key: by_id[policies[key].id] for key in keys}
            results |= found
        return results

    def optim_step(self, **settings: Unpack[OptimizerStep]) -> OptimStepResult:
        """Apply the pending gradient, and clear it; see `Learner`."""
        with self._change.applying():
            return self._learner.optim_step(self.id, **settings)

    def has_gradient(self) -> bool:
        """Whether there is a pending gradient."""
        return self._learner.has_gradient(self.id)

    def forget_gradient(self) -> None:
        """Drop the pending gradient, if there is one."""
        self._learner.forget_gradient(self.id)

    def logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the logprobs of the sampled tokens, per sequence in input order."""
        return self._learner.logprobs(self.id, sequences)

    def values(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the value head's estimate before each sampled token, per sequence in input order."""
        return self._learner.values(self.id, sequences)

    # --- what it is compared with ---

    def beginning(self, *, asked_again: bool = False) -> AbstractContextManager[FrozenPolicy]:
        """Return the policy that the job started from; see `CheckpointKeeping.beginning`."""
        return self._checkpoints.beginning(asked_again=asked_again)

    def open_teacher(self, teacher: str) -> FrozenPolicy:
        """Load a model, or another job's policy; see `open_teacher`."""
        return open_teacher(self._bound, teacher)

    # --- versions ---

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together that the engine samples."""
        return self._engine.context_length

    @property
    def sampling_seconds(self) -> float:
        """Seconds in which the engine computed, for any policy; increases monotonically."""
        return self._engine.busy_seconds

    def take_weights(self) -> TakenWeights:
        """Copy the current weights, and start hashing them."""
        weights = self._learner.weights(self.id)
        return TakenWeights(weights, hash_aside(weights))

    def publish(self, version: int, taken: TakenWeights, *, let_finish: bool = False) -> None:
        """See `TrainedPolicy`."""
        publish(self._engine, self.id, version, taken, let_finish=let_finish)
        self._policy_facts.published(version, taken.weights, taken.sha256)

    def recorded_sha256(self, version: int) -> str | None:
        """Return the hash that an earlier attempt recorded for a version; None if there is none."""
        bound = self._bound
        return bound.pool.store.version_sha256(bound.lease.job_id, version, bound.agent)

    def probed_parity(
        self, version: int, prompts: Iterable[parity.Prompt], *, temperature: float, allowed: float
    ) -> dict[str, float]:
        """See `TrainedPolicy`."""
        probed = parity.probe(self._engine, self.id, version, prompts, temperature)
        if not probed:
            return {}
        logprobs = self.logprobs(probed)
        metrics = parity.parity(allowed, probed, logprobs)
        self.note_agreement(version, metrics, probed, logprobs, allowed=allowed, by_probe=True)
        return metrics

    def note_agreement(
        self,
        version: int,
        metrics: Mapping[str, float],
        sequences: Sequence[TrainSequence],
        logprobs: Sequence[FloatArray],
        *,
        allowed: float,
        by_probe: bool = False,
    ) -> None:
        """See `TrainedPolicy`."""
        tokens = sum(len(own) for own in logprobs)
        self._policy_facts.agreed(version, metrics, tokens=tokens, by_probe=by_probe, allowed=allowed)
        if logprobs and self._policy_facts.wants_effect_of(version):
            few = sequences[:MOST_COMPARED]
            with self.beginning() as before:
                self._policy_facts.effect(few, logprobs[:MOST_COMPARED], before.logprobs(few))

    def take_facts(self) -> list[Fact]:
        """See `TrainedPolicy`."""
        return self._policy_facts.take()

    def await_version(self, version: int | None) -> None:
        """Let requests wait for a version that will be published again; None means that it is."""
        self._bound.pool.directory.await_version(self.id, version)

    def let_engine_sleep(self) -> None:
        """Let the engine free its memory for the learner; publishing wakes it."""
        self._engine.sleep()

    def expect_requests_for(self, version: int) -> None:
        """From now on hold requests for a version that is not published yet."""
        self._bound.pool.early.expect(self.id, version)

    def answer_kept_requests(self) -> None:
        """Pass held requests to the engine: the version is published."""
        self._bound.pool.early.published(self.id)

    def refuse_kept_requests(self) -> None:
        """Answer held requests with an error: the version will not be published."""
        self._bound.pool.early.forget(self.id)

    # --- checkpoints ---

    def checkpoints(self) -> list[CheckpointView]:
        """Return the stored checkpoints, oldest first."""
        return self._checkpoints.views()

    def save(self, step: int, *, version: int | None = None) -> None:
        """Write a checkpoint of `step`, and record it; see `CheckpointKeeping.save`."""
        self._checkpoints.save(step, version=version)

    def tidy(self, step: int) -> None:
        """Drop the checkpoints that are superseded by the one of `step`."""
        self._checkpoints.tidy(step)

    def keep_steps(self, steps: Iterable[int], *, why: str = "evaluations") -> None:
        """Keep the checkpoints of these steps, instead of those kept for this reason before."""
        self._checkpoints.keep_steps(steps, why=why)

    @property
    def notes(self) -> dict[str, JsonValue]:
        """State of the job's loop in each checkpoint, available again after `restore`."""
        return self._checkpoints.notes

    def note(self, notes: Mapping[str, JsonValue]) -> None:
        """Write this into the checkpoints from now on."""
        self._checkpoints.notes = dict(notes)

    def load(self, policy: str, *, with_optimizer: bool) -> None:
        """Continue from a stored version; see `CheckpointKeeping.load_aside`."""
        aside = self._checkpoints.load_aside(policy, with_optimizer=with_optimizer)
        with self._change.applying():
            self._learner.replace(self.id, aside)


def _of_pool(policy: TrainedPolicy) -> PoolPolicy:
    assert isinstance(policy, PoolPolicy), "the policies of a job are all of its pool"
    return policy
