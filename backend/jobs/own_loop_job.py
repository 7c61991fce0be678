"""A policy trained by its user's own loop: the job's side, which executes the client's calls in order.

A checkpoint is named by the last call that it covers. Another attempt starts from the newest one and repeats
the later calls, so an acknowledged call takes effect once, whatever is killed.
"""

from __future__ import annotations

import time

from pydantic import ValidationError

from backend.errors import ClientSilentError, PausedError
from backend.jobs.job_context import JobContext
from backend.jobs.job_loop import JobLoop
from backend.jobs.own_loop_parity import PublishCheck
from backend.learner.sequences import BatchTotals, TokenLimits, TrainSequence, left_out_image
from backend.learner.token_loss import TokenLoss, likelihood_loss, policy_loss
from backend.store.policy_call_rows import StoredCall
from tinkergym.errors import (
    CheckpointCorruptError,
    ConflictError,
    InvalidRequestError,
    JobCancelledError,
    NonFiniteLossError,
    NotFoundError,
)
from tinkergym.schema.events import ErrorView, JobState
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.policy_calls import (
    CallResult,
    ForwardBackward,
    Load,
    Logprobs,
    OptimStep,
    PolicyCall,
    Publish,
    Save,
    TokenSequence,
)

_LOOK_SECONDS = 1.0
"""If the bell was missed because the gateway found no pool, a call is found after this time."""

_MOST_UNSAVED_BYTES = 2**26
"""Calls are stored until a checkpoint covers them, so large ones need one earlier."""

_PUBLISHED = "published"
"""Why the checkpoint of the last published version is kept."""

_REFUSALS = (InvalidRequestError, ConflictError, NotFoundError, NonFiniteLossError)
"""Errors of a single call: its caller gets them, and the next call is executed."""


class PolicyJob(JobLoop[PolicySpec]):
    """One policy's loop; the steps of `JobLoop` are the numbers of calls here."""

    def __init__(self, context: JobContext[PolicySpec]) -> None:
        super().__init__(context)
        self._check = PublishCheck(context)
        self._version: int | None = None
        """The published or saved version of the current weights; None if they are newer."""
        self._published = 0
        """The newest published version, also if it is still to be repeated."""
        self._unsaved_bytes = 0
        """Size of the stored calls after the last checkpoint."""
        self._last_publish: int | None = None
        """The last call of this attempt that published."""

    def _run(self) -> None:
        context = self._context
        self._begin_from_checkpoint()
        views = {view.step: view for view in context.policy.checkpoints()}
        covered = views.get(self._done_step)
        self._version = self._done_step if covered is None else covered.policy_version
        self._published = context.store.job(context.job_id).policy_version
        if self._published > self._done_step:
            # Its calls are repeated below. Until then older weights would be sampled under the newest name.
            context.policy.await_version(self._published)
        self._keep_published()
        if self._done_step:  # A kill may have come between the checkpoint of a `save` and its result.
            context.store.finish_call(context.lease, self._done_step, self._saved(self._done_step))
        self._publish_present(self._version)
        context.bell.done(context.job_id, self._done_step)
        context.store.set_state(context.lease, JobState.RUNNING, self._resumed_from())
        last_call = time.monotonic()
        while True:
            try:
                context.control.check()
            except (JobCancelledError, PausedError):
                self._quietly(self._check.changes)
                raise
            # Read before the store is asked: a call that arrives between the two then ends the wait below.
            rung = context.bell.rung
            call = context.store.next_call(context.job_id, self._done_step)
            if call is not None:
                self._carry_out(call)
                # After the call, however long it took: the client could not have sent the next one.
                last_call = time.monotonic()
            elif time.monotonic() - self._last_used(last_call) > context.spec.idle_seconds:
                self._check.changes()
                raise ClientSilentError(
                    f"no script has called or sampled for {context.spec.idle_seconds:g} s (idle_seconds), so "
                    "the policy was saved and gave up its place. If the script ended or died, continue with "
                    f"client.training_policy({context.job_id!r}), or end the policy with "
                    f"`tinkergym jobs cancel {context.job_id}`"
                )
            else:
                context.bell.wait(rung, min(_LOOK_SECONDS, context.spec.idle_seconds))

    def _last_used(self, last_call: float) -> float:
        return max(last_call, self._context.bell.last_sampled(self._context.job_id))

    def _carry_out(self, stored: StoredCall) -> None:
        context = self._context
        result = stored.result
        if result is None:
            result = self._call_or_refuse(stored)
        elif not isinstance(stored.call, Logprobs | Save):  # These leave the policy unchanged.
            self._repeat(stored, result)
        tokens = 0
        if stored.result is None:
            tokens = _trained_tokens(stored.call) if result.error is None else 0
            context.store.finish_call(context.lease, stored.seq, result, tokens=tokens)
        # Only after the result is stored: the next attempt does not repeat calls that a checkpoint covers.
        self._done_step = stored.seq
        context.policy.step_finished()
        if tokens:
            self._check_budget()
        context.bell.done(context.job_id, stored.seq)
        self._unsaved_bytes += stored.bytes
        self._save_if_due(stored.call, result)

    def _save_if_due(self, call: PolicyCall, result: CallResult) -> None:
        """Write an automatic checkpoint after a call."""
        context, seq = self._context, self._done_step
        if isinstance(call, Publish):
            # If the next checkpoint came after further training, the published weights could not be made
            # again. Publishes are assumed to be as far apart as the last two.
            before, self._last_publish = self._last_publish, seq
            apart = context.spec.checkpoint_every if before is None else seq - before
            due = seq + apart - self._saved_step >= context.spec.checkpoint_every
        elif isinstance(call, Load):
            # Repeating it needs the other policy's version, which may be deleted.
            due = result.error is None
        else:
            due = seq - self._saved_step >= context.spec.checkpoint_every
        if due or self._unsaved_bytes > _MOST_UNSAVED_BYTES:
            self._save_last_good()

    def _repeat(self, stored: StoredCall, before: CallResult) -> None:
        """Repeat an earlier call for its effect on the policy.

        Raises:
            CheckpointCorruptError: It has another effect now.
        """
        again = self._call_or_refuse(stored)
        if (again.error is None) != (before.error is None):
            said = "it is no longer refused" if again.error is None else again.error.message
            raise CheckpointCorruptError(
                f"call {stored.seq} of {self._context.job_id} cannot be repeated: {said}",
                hint="create another policy from a stored version",
            )

    def _call_or_refuse(self, stored: StoredCall) -> CallResult:
        # A damaged checkpoint is read next to the policy, which stays as it is.
        refusals = (*_REFUSALS, CheckpointCorruptError) if isinstance(stored.call, Load) else _REFUSALS
        try:
            return self._call(stored.seq, stored.call)
        except refusals as error:
            return CallResult(error=ErrorView.model_validate(error.to_wire()))
        except ValidationError as error:
            # A result refuses numbers that are not finite, which come from what the client sent.
            if error.title != CallResult.__name__ or not isinstance(stored.call, ForwardBackward | Logprobs):
                raise
            self._context.policy.forget_gradient()
            name = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
            unusable = NonFiniteLossError(
                f"{name} is not finite or beyond float32, and the accumulated gradient was dropped",
                hint="check for sampling logprobs of a different policy, or extreme advantages",
            )
            return CallResult(error=ErrorView.model_validate(unusable.to_wire()))

    def _call(self, seq: int, call: PolicyCall) -> CallResult:
        context = self._context
        match call:
            case ForwardBackward():
                return self._forward_backward(call)
            case OptimStep():
                self._check.changes()
                self._check.changed()
                stepped = context.policy.optim_step(**call.model_dump(exclude={"op"}))
                if not stepped.skipped:
                    self._version = None
                return CallResult(metrics=stepped.metrics, skipped=stepped.skipped)
            case Logprobs():
                found = context.policy.logprobs(_sequences(call, context.policy.limits))
                return CallResult(logprobs=[own.tolist() for own in found])
            case Publish():
                self._publish(seq)
                return CallResult(version=seq)
            case Save():
                self._save(seq)
                return self._saved(seq)
            case Load():
                self._load(call)
                return CallResult()

    def _forward_backward(self, call: ForwardBackward) -> CallResult:
        context = self._context
        sequences = _sequences(call, context.policy.limits)
        # The sum over tokens: the client's gradient is with respect to each logprob.
        totals = BatchTotals(tokens=1, sequences=1) if call.loss == "linear" else None
        result = context.policy.forward_backward(sequences, _loss(call), totals=totals)
        self._check.learned(
            sequences, result.learner_logprobs, sampled=call.loss not in {"linear", "cross_entropy"}
        )
        return CallResult(
            loss=result.loss,
            logprobs=[own.tolist() for own in result.learner_logprobs],
            metrics=result.metrics,
        )

    def _load(self, call: Load) -> None:
        context = self._context
        self._check.changes()
        self._check.changed()
        context.policy.load(call.policy, with_optimizer=call.with_optimizer)
        self._version = None

    def _publish(self, seq: int) -> None:
        context = self._context
        sha256 = self._publish_present(seq)
        self._version = seq
        # Only once the engine has it: the recorded version is the one that is sampled as the newest.
        context.store.record_publish(context.lease, seq, sha256)
        if seq >= self._published:
            self._published = seq
            context.policy.await_version(None)

    def _publish_present(self, version: int) -> str:
        policy = self._context.policy
        taken = policy.take_weights()
        policy.publish(version, taken)
        self._check.published(version)
        self._context.store.add_facts(self._context.lease, policy.take_facts())
        return taken.sha256

    def _save(self, step: int) -> None:
        context = self._context
        # Weights that were published keep their version, so that it can be sampled after a restart.
        context.policy.save(step, version=self._version)
        # Before `tidy`, which removes the checkpoints that nothing keeps.
        self._keep_published()
        context.policy.tidy(step)
        self._saved_step, self._unsaved_bytes = step, 0
        self._forget_covered()

    def _saved(self, seq: int) -> CallResult:
        version = seq if self._version is None else self._version
        return CallResult(policy=str(PolicyRef(owner=self._context.job_id, version=version)), version=version)

    def _keep_published(self) -> None:
        policy = self._context.policy
        steps = [view.step for view in policy.checkpoints() if view.policy_version == self._published]
        policy.keep_steps(steps[-1:], why=_PUBLISHED)

    def _forget_covered(self) -> None:
        # Through the oldest checkpoint: if a newer one is damaged, the calls after the oldest are repeated.
        # One that is kept longer, for sampling, does not count.
        context = self._context
        kept = [view.step for view in context.policy.checkpoints() if view.step]
        context.store.forget_calls(context.lease, min(kept[-context.spec.keep_checkpoints :], default=0))

    def _clean_up(self) -> None:
        self._context.bell.forget(self._context.job_id)

    def _save_last_good(self) -> None:
        # With a pending gradient nothing is saved: the calls that made it are repeated from their record.
        context = self._context
        unsaved = self._done_step > self._saved_step and not context.policy.is_changing
        if unsaved and not context.policy.has_gradient():
            self._save_what_is_done()

    def _save_if_recorded(self) -> None:
        self._save_last_good()


def _trained_tokens(call: PolicyCall) -> int:
    if not isinstance(call, ForwardBackward):
        return 0
    return sum(sum(own.trained) for own in call.sequences)


def _sequences(call: ForwardBackward | Logprobs, limits: TokenLimits) -> list[TrainSequence]:
    for number, own in enumerate(call.sequences):
        if wrong := left_out_image(own.images, own.token_ids, own.trained, limits):
            raise InvalidRequestError(
                f"sequence {number}: {wrong}",
                hint="pass `images`, as prompt_images returns them for messages",
                field="sequences.images",
            )
    return [_sequence(own) for own in call.sequences]


def _sequence(own: TokenSequence) -> TrainSequence:
    count = len(own.token_ids)
    return TrainSequence(
        token_ids=own.token_ids,
        loss_mask=own.trained,
        sampling_logprobs=own.sampling_logprobs if own.sampling_logprobs is not None else [0.0] * count,
        advantage=own.advantage,
        temperature=own.temperature,
        reference_logprobs=own.reference_logprobs,
        images=own.images,
    )


def _loss(call: ForwardBackward) -> TokenLoss:
    if call.loss == "linear":
        return likelihood_loss("constant")
    if call.loss == "cross_entropy":
        return likelihood_loss(call.aggregation, call.constant_tokens)
    for number, own in enumerate(call.sequences):
        if own.sampling_logprobs is None:
            raise InvalidRequestError(
                f"sequence {number} has no sampling_logprobs, which loss={call.loss!r} needs",
                hint="pass the completion's, or use loss='cross_entropy'",
                field="sequences.sampling_logprobs",
            )
        if call.kl_coefficient and own.reference_logprobs is None:
            # Noticed during the computation, it would cost the gradient of earlier calls.
            raise InvalidRequestError(
                f"sequence {number} has no reference_logprobs, which kl_coefficient needs",
                hint="get them from another policy's logprobs(), or set kl_coefficient to 0",
                field="sequences.reference_logprobs",
            )
    return policy_loss(
        loss=call.loss,
        clip_low=call.clip_low,
        clip_high=call.clip_high,
        aggregation=call.aggregation,
        constant_tokens=call.constant_tokens,
        entropy_coefficient=call.entropy_coefficient,
        kl_coefficient=call.kl_coefficient,
        kl_estimator=call.kl_estimator,
    )
