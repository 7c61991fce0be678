"""The loop of jobs that learn from written data: batch by batch, measured now and then, resumed anywhere."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from backend.learner.optimiser import OptimStepResult
from backend.training.job_loop import JobLoop
from backend.training.parity import probed_parity
from backend.training.schedule import learning_rate
from backend.training.step_report import spike_warnings
from backend.training.written_data import Record, WrittenData, batch_numbers, read
from backend.weights import hash_aside
from tinkergym.wire import JobState, StepEvent
from tinkergym.wire_jobs import WrittenDataSpec

WrittenT_co = TypeVar("WrittenT_co", bound=WrittenDataSpec, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What a batch said before the optimiser's step."""

    loss: float
    metrics: dict[str, float]


class WrittenDataJob(JobLoop[WrittenT_co]):
    """What SFT and preference jobs have in common."""

    _data: WrittenData
    _version = 0
    """Of the policy that can be sampled: the newest checkpoint's, and at the end the last step's."""
    _sha256 = ""

    @abstractmethod
    def _learn(self, numbers: Sequence[int]) -> Update:
        """Compute the gradient of a batch of `self._data.train`."""

    @abstractmethod
    def _measure(self, records: Sequence[Record]) -> dict[str, float]:
        """Return what the present policy says of records that it is not trained on."""

    def _prepare(self) -> None:
        """Do what has to be done once, before the first step."""

    def _run(self) -> None:
        context, spec = self._context, self._context.spec
        self._data = read(context)
        self._begin_from_checkpoint()
        context.store.set_state(context.lease, JobState.RUNNING, self._resumed_from())
        self._publish_present(self._data.train)
        if self._done_step < spec.steps:
            # Once per publish, not before each update: who wakes it meanwhile, an RL job between two answers
            # perhaps, would have to wait for its start again and again.
            self._let_engine_sleep()
            self._prepare()
            for step in range(self._done_step + 1, spec.steps + 1):
                context.control.check()
                self._step(step)
        context.store.set_state(
            context.lease, JobState.COMPLETED, f"step {spec.steps} of {spec.steps} is done"
        )

    def _step(self, step: int) -> None:
        context, spec = self._context, self._context.spec
        numbers = batch_numbers(spec, len(self._data.train), step)
        sequences = [sequence for number in numbers for sequence in self._data.train[number]]
        with context.clock.part("forward_backward"):
            update = self._learn(numbers)
        stepped = self._optimise(step)
        self._done_step = step
        context.change.finished()
        metrics = {**update.metrics, **stepped.metrics, "skipped_updates": float(stepped.skipped)}
        last = step == spec.steps
        if self._data.evaluate and (step == 1 or last or step % spec.eval_every == 0):
            with context.clock.part("evaluate"):
                metrics |= self._measure(self._data.evaluate)
        save = last or step % spec.checkpoint_every == 0
        if save:
            with context.clock.part("publish"):
                metrics |= self._publish_present([self._data.train[number] for number in numbers])
        seconds = context.clock.lap()
        tokens = sum(len(sequence.token_ids) for sequence in sequences)
        event = StepEvent(
            step=step,
            steps=spec.steps,
            policy_version=self._version,
            loss=update.loss,
            records=len(numbers),
            trained_tokens=sum(sequence.trained_tokens for sequence in sequences),
            tokens_per_second=tokens / max(seconds.step, 1e-9),
            step_seconds=seconds.step,
            sampling_seconds=seconds.sampling,
            learning_seconds=seconds.learning,
            seconds_left=context.clock.expected(spec.steps - step),
            metrics={
                **metrics,
                **seconds.parts,
                "epoch": step * spec.batch_size / len(self._data.train),
            },
        )
        context.store.record_step(context.lease, event, self._sha256)
        context.store.append_events(context.lease, list(spike_warnings(event)))
        if save:
            with context.clock.part("checkpoint"):
                self._save_what_is_done()
        if save and not last:
            self._let_engine_sleep()

    def _optimise(self, step: int) -> OptimStepResult:
        context, spec = self._context, self._context.spec
        with context.clock.part("optim_step"), context.change.applying():
            return context.learner.optim_step(
                context.job_id,
                learning_rate=learning_rate(spec, step, spec.steps),
                max_grad_norm=spec.max_grad_norm,
                weight_decay=spec.weight_decay,
            )

    def _publish_present(self, records: Sequence[Record]) -> dict[str, float]:
        """Let the policy be sampled as it is now; see by these records' prompts that it arrived so."""
        weights = self._context.learner.weights(self._context.job_id)
        hashed = hash_aside(weights)
        self._publish(self._done_step, weights, hashed)
        self._version, self._sha256 = self._done_step, hashed.result()
        prompts = (record[0].prompt for record in records)
        return probed_parity(self._context, self._version, prompts, temperature=1.0)
