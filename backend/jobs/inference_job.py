"""Inference jobs: completions of a dataset's rows, in order, kept part by part.

A part's results are a file; the record of its step is what makes them count. Another attempt continues after
the last recorded step, and its rows have the seeds that they would have had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice

from backend.jobs.job_loop import JobLoop
from backend.store.step_files import RowResults
from backend.store.uploads import Uploads
from tinkergym.errors import PromptTooLongError
from tinkergym.inference.in_order import Answer, InOrder
from tinkergym.inference.results import fault_of
from tinkergym.inference.sampling_plan import SamplingPlan
from tinkergym.schema.events import ErrorView, JobState, StepEvent
from tinkergym.schema.jobs.inference import InferenceSpec
from tinkergym.schema.sampling import Completion, RowResult, SampledRow, SampleRequest
from tinkergym.schema.uploaded_data import PromptNote, TokenSequence
from tinkergym.trajectory.trajectory import MOST_TOKENS

_IN_FLIGHT = 512
"""Requests at a time: more than an engine computes together, so that it is always full."""
_AHEAD = 4 * _IN_FLIGHT


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    note: PromptNote
    prompt_tokens: int = 0
    fault: ErrorView | None = None


class InferenceJob(JobLoop[InferenceSpec]):
    """One inference job's loop."""

    def _run(self) -> None:
        context, spec = self._context, self._context.spec
        self._done_step = self._saved_step = context.store.job(context.job_id).step
        context.store.set_state(context.lease, JobState.RUNNING, self._resumed_from())
        rows = Uploads(context.uploads, context.lease.tenant_id).view(spec.data).records
        run = InOrder[_Row](
            context.sampler,
            in_flight=_IN_FLIGHT,
            # In rows, each of which has n requests.
            ahead=max(2, _AHEAD // spec.n),
            check=context.control.check_within_step,
        )
        part: list[RowResult] = []
        with closing(run.run(self._work(self._done_step * spec.rows_per_step))) as answered:
            for row, answers in answered:
                part.append(self._result(row, answers))
                if len(part) == spec.rows_per_step or row.number == rows - 1:
                    self._record(part)
                    part = []
                    if self._done_step < spec.steps:  # After the last one, nothing is left to pause.
                        self._check_budget()
                        context.control.check()
        context.store.set_state(context.lease, JobState.COMPLETED, f"{rows} rows are done")

    def _work(self, start: int) -> Iterator[tuple[_Row, Sequence[SampleRequest]]]:
        """Yield rows from number `start` on, with their requests."""
        context, spec = self._context, self._context.spec
        plan = SamplingPlan(
            # Requests of an earlier attempt may still be in the engine, so ids are not used again.
            run_id=f"{context.job_id}-{context.lease.epoch}",
            policy=spec.policy or spec.model,
            policy_version=None,
            decoding=spec.decoding,
            n=spec.n,
            stop_ids=spec.stop_ids,
            context_length=context.limits.context_length or MOST_TOKENS,
        )
        for number, (record, note) in islice(enumerate(self._records()), start, None):
            if not record:
                fault = ErrorView(type="InvalidRequestError", message=note.fault)
                yield _Row(number, note, fault=fault), []
                continue
            (prompt,) = record
            row = _Row(number, note, len(prompt.token_ids))
            try:
                requests = plan.requests(number, prompt.token_ids, prompt.images)
            except PromptTooLongError as error:
                fault = ErrorView.model_validate(error.to_wire())
                yield _Row(number, note, row.prompt_tokens, fault), []
            else:
                yield row, requests

    def _records(self) -> Iterator[tuple[list[TokenSequence], PromptNote]]:
        context = self._context
        chunks = Uploads(context.uploads, context.lease.tenant_id).chunks(context.spec.data)
        while (chunk := self._with_blobs(partial(next, chunks, None))) is not None:
            yield from zip(chunk.records, chunk.notes, strict=True)

    def _result(self, row: _Row, answers: Sequence[Answer]) -> RowResult:
        spec = self._context.spec
        if row.fault is not None:
            samples = [SampledRow(error=row.fault)] * spec.n
        else:
            samples = [
                SampledRow(
                    token_ids=answer.token_ids,
                    logprobs=answer.sampling_logprobs if spec.logprobs else None,
                    finish_reason=answer.finish_reason,
                    policy_version=answer.policy_version,
                    text=answer.text,
                )
                if isinstance(answer, Completion)
                else SampledRow(error=fault_of(answer))
                for answer in answers
            ]
        return RowResult(row=row.number, prompt_tokens=row.prompt_tokens, note=row.note, samples=samples)

    def _record(self, part: Sequence[RowResult]) -> None:
        """Keep a part's results, and then record its step."""
        context, step = self._context, self._done_step + 1
        samples = [sample for row in part for sample in row.samples]
        lines = [row.model_dump_json(exclude_defaults=True).encode() for row in part]
        with context.clock.part("results"):
            results = RowResults(context.files)
            self._with_blobs(partial(results.write, step, lines, epoch=context.lease.epoch))
        seconds = context.clock.lap()
        sampled = sum(len(sample.token_ids) for sample in samples)
        event = StepEvent(
            step=step,
            steps=context.spec.steps,
            policy_version=max(sample.policy_version for sample in samples),
            loss=None,
            records=len(part),
            sampled_tokens=sampled,
            tokens_per_second=sampled / max(seconds.step, 1e-9),
            step_seconds=seconds.step,
            sampling_seconds=seconds.sampling,
            learning_seconds=seconds.learning,
            seconds_left=context.clock.expected(context.spec.steps - step),
            metrics={
                "rows_done": float(part[-1].row + 1),
                "failed_samples": float(sum(sample.error is not None for sample in samples)),
                **seconds.parts,
            },
        )
        context.store.record_step(context.lease, event, {})
        self._done_step = self._saved_step = step
