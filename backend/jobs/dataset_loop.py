"""The loop of jobs that train on a dataset: batch by batch, evaluated regularly, resumable anywhere."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from backend.errors import ClientSilentError
from backend.jobs.completions import speed_metrics
from backend.jobs.dataset_records import Record, WrittenData, WrittenSequence, batch_numbers, read
from backend.jobs.job_context import JobContext
from backend.jobs.job_loop import JobLoop
from backend.jobs.step_evaluations import StepEvaluations
from backend.jobs.step_report import spike_warnings
from backend.store.stored_facts import Fact
from tinkergym.schema.certificate import StepFacts
from tinkergym.schema.events import JobState, StepEvent, WarningEvent
from tinkergym.schema.jobs.dataset import DatasetSpec

_LOOK_SECONDS = 0.5
"""How often a job that waits for its evaluations checks whether it should end."""

WrittenT_co = TypeVar("WrittenT_co", bound=DatasetSpec, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The results of a batch before the optimizer step."""

    loss: float
    metrics: dict[str, float]


class WrittenDataJob(JobLoop[WrittenT_co]):
    """Shared by SFT and preference jobs."""

    _data: WrittenData
    _trained_on = 0
    """Records of the evaluation that are also trained on."""
    _version = 0
    """Step of the sampled policy: the newest checkpoint's, and at the end the last step's."""
    _sha256 = ""

    def __init__(self, context: JobContext[WrittenT_co]) -> None:
        super().__init__(context)
        self._evaluations = StepEvaluations(context)

    @abstractmethod
    def _learn(self, numbers: Sequence[int]) -> Update:
        """Compute the gradient of a batch of `self._data.train`."""

    @abstractmethod
    def _measure(self, records: Sequence[Record]) -> dict[str, float]:
        """Evaluate the current policy on held-out records."""

    def _prepare(self) -> None:
        """Prepare what is needed before the first step."""

    def _run(self) -> None:
        context, spec = self._context, self._context.spec
        self._data = read(context)
        # Counted once, as this hashes all records.
        self._trained_on = self._data.trained_on
        self._begin_from_checkpoint()
        context.store.set_state(context.lease, JobState.RUNNING, self._resumed_from())
        self._warn_of_equal_records()
        self._publish_present(self._data.train)
        self._evaluations.open()
        if self._evaluations.stop_reason:
            self._evaluations.end_at(self._done_step)
        self._evaluations.begin_left_over(self._done_step)
        if self._done_step < spec.steps and not self._evaluations.stop_reason:
            # Once per publish, not before each update: otherwise a job that wakes the engine meanwhile, such
            # as an RL job between two completions, would wait for its start again and again.
            self._let_engine_sleep()
            self._prepare()
            for step in range(self._done_step + 1, spec.steps + 1):
                context.control.check()
                self._step(step)
                if self._evaluations.stop_reason:
                    break
            if self._done_step > self._saved_step:
                self._publish_present(self._data.train)
                context.store.add_facts(context.lease, context.policy.take_facts())
                self._save_what_is_done()
            self._evaluations.end_at(self._done_step)
            self._evaluations.begin(self._done_step)
        while not self._evaluations.collect(wait_seconds=_LOOK_SECONDS):
            context.control.check()
            self._check_client()
        done = f"step {self._done_step} of {spec.steps} is done"
        reason = self._evaluations.stop_reason
        context.store.set_state(context.lease, JobState.COMPLETED, f"{done}: {reason}" if reason else done)

    def _warn_of_equal_records(self) -> None:
        """Say once which records of an evaluation are also trained on, or occur more than once."""
        context, data = self._context, self._data
        told = {
            "evaluation_overlaps": self._trained_on
            and f"{self._trained_on} of the {len(data.evaluate)} records of eval_data are also in data, so "
            "their loss is not held out: leave them out of one of the two",
            "equal_records": data.kept_together
            and f"{data.kept_together} records occur more than once; held_out keeps equal ones on one side, "
            f"and holds out {len(data.evaluate)}",
        }
        for name, message in told.items():
            if message and 0 not in context.store.warned_steps(context.job_id, name):
                context.store.append_event(context.lease, WarningEvent(name=name, message=message))

    def _check_client(self) -> None:
        """Give the job's place up if the client that plays its last evaluations is away.

        Raises:
            ClientSilentError: It was silent for too long.
        """
        context = self._context
        if self._evaluations.client_silence() > context.client_place_seconds:
            raise ClientSilentError(
                f"training is done; waits for a client that plays the evaluations, which was silent for "
                f"{context.client_place_seconds:g} s. Attach with "
                f"Client.attach({context.job_id!r}, env=...)"
            )

    def _clean_up(self) -> None:
        self._evaluations.close()

    def _step(self, step: int) -> None:
        context, spec = self._context, self._settings_at(step)
        assert isinstance(spec, DatasetSpec)
        numbers = batch_numbers(spec, len(self._data.train), step)
        sequences = [sequence for number in numbers for sequence in self._data.train[number]]
        with context.clock.part("forward_backward"):
            update = self._learn(numbers)
        with context.clock.part("optim_step"):
            stepped = context.policy.optim_step(**spec.optimizer_step(step, spec.steps))
        self._done_step = step
        context.policy.step_finished()
        metrics = {**update.metrics, **stepped.metrics, "skipped_updates": float(stepped.skipped)}
        last = step == spec.steps
        if self._data.evaluate and (step == 1 or last or step % spec.eval_every == 0):
            with context.clock.part("evaluate"):
                metrics |= self._measure(self._data.evaluate)
                metrics["eval_overlap"] = self._trained_on / len(self._data.evaluate)
        save = last or step % spec.checkpoint_every == 0 or self._evaluations.is_due(step)
        if save:
            # Before the event, which names the newest version that can be sampled.
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
        facts = self._facts(step, sequences, stepped.learning_rate)
        event = event.model_copy(update={"metrics": {**event.metrics, **speed_metrics(event)}})
        context.store.record_step(context.lease, event, self._sha256, facts=facts)
        context.store.append_events(context.lease, list(spike_warnings(event)))
        if save:
            with context.clock.part("checkpoint"):
                self._save_what_is_done()
            self._evaluations.begin(step)
        self._evaluations.collect()
        if not last:
            self._check_budget()
        if save and not last:
            self._let_engine_sleep()

    def _facts(self, step: int, sequences: Sequence[WrittenSequence], rate: float) -> list[Fact]:
        """Return a step's facts for the run's certificate."""
        context = self._context
        with context.clock.work("certificate"):
            digest = hashlib.sha256()
            for sequence in sequences:
                digest.update(sequence.token_ids.tobytes() + repr(sequence.trained).encode())
            seen = StepFacts(
                step=step,
                attempt=context.lease.attempt,
                trained_tokens=sum(sequence.trained_tokens for sequence in sequences),
                records=len(sequences),
                records_sha256=digest.hexdigest(),
                learning_rate=rate,
            )
            return [
                Fact(kind="step", number=step, attempt=0, body=seen),
                *context.policy.take_facts(),
            ]

    def _publish_present(self, records: Sequence[Record]) -> dict[str, float]:
        """Let the policy be sampled as it is now; see by these records' prompts that it arrived so."""
        context = self._context
        taken = context.policy.take_weights()
        context.policy.publish(self._done_step, taken)
        self._version, self._sha256 = self._done_step, taken.sha256
        prompts = (record[0].prompt for record in records)
        return context.policy.probed_parity(
            self._version, prompts, temperature=1.0, allowed=context.parity_threshold
        )
