"""Separate batches: each has a cache of its own, and all its answers are handed over together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from backend.engines.failures import deliver_to, failure
from backend.engines.transformers.engine_turns import EngineTurns
from backend.engines.transformers.packed_model import PackedModel
from backend.engines.transformers.request_intake import RequestIntake, Taken
from backend.engines.transformers.request_state import RequestState
from backend.engines.transformers.slot_scheduler import SlotScheduler
from backend.engines.transformers.slot_table import Counters, SlotLimits
from backend.errors import SERVICE_LOG
from backend.processes.exhaustion import end_if_exhausted, out_of_memory_code
from tinkergym.agent.sampler import Deliver, has_gone
from tinkergym.errors import InternalServiceError, TinkerGymError
from tinkergym.schema.sampling import Completion, SampleFailure

_log = logging.getLogger(__name__)

_BATCH_WORK_ON_CPU = 10**10
_BATCH_TOKENS_ON_CPU = 512
"""A forward of a separate batch has at most so many tokens times parameters, or tokens if these are more: the
requests of others wait until it ends. With the smallest models, whose logprobs are those of the learner to
the last bit, it is larger than usual, because a prompt that is cut is rounded in another way."""

BATCHES_AT_ONCE = 4
"""Separate batches, of different tenants, that have a cache at a time; on a GPU they share its memory."""


@dataclass(eq=False, slots=True)
class Batch:
    """Requests that are sampled as one separate batch."""

    taken: Taken
    deliver: Deliver
    scheduler: SlotScheduler | None = None
    """Made when the batch begins, because it has a cache."""
    outcomes: list[RequestState | Completion | SampleFailure] = field(default_factory=list)

    @property
    def owner(self) -> str:
        """The tenant; without one, the policy is used to identify its job."""
        request, _ = self.taken[0]
        return request.seat.owner or f"/{request.policy}"

    @property
    def unwanted(self) -> bool:
        """Whether the requester is gone, see `Deliver`."""
        return has_gone(self.deliver)


class BatchRuns:
    """A batch is answered once: when its last request is, or when it is given up."""

    def __init__(
        self,
        model: PackedModel,
        intake: RequestIntake,
        limits: SlotLimits,
        counters: Counters,
        iteration_tokens: int,
    ) -> None:
        self._model, self._intake, self._limits = model, intake, limits
        self._counters, self._iteration_tokens = counters, iteration_tokens

    def step(self, batch: Batch, turns: EngineTurns, advance: Callable[[SlotScheduler], object]) -> bool:
        """Compute a step of a batch with `advance`; return whether it is done."""
        turns.patient = True
        try:
            scheduler = batch.scheduler or self._begun(batch)
            advance(scheduler)
        except Exception as error:
            _log.exception("a batch of %d requests failed", len(batch.taken))
            end_if_exhausted(error)
            why = f"the engine failed: {error}"
            self.give_up(
                batch, InternalServiceError(why, hint=f"see {SERVICE_LOG}", code=out_of_memory_code(error))
            )
            return True
        finally:
            turns.patient = False
        if not scheduler.idle:
            return False
        deliver_to(batch.deliver, [_answer(outcome) for outcome in batch.outcomes])
        return True

    def _begun(self, batch: Batch) -> SlotScheduler:
        """Give a batch a cache, and queue its requests there."""
        taken = batch.taken
        longest = max(len(r.prompt_ids) + min(r.max_tokens, 64) for r, _ in taken)
        # Limits are the same in any company: the last bit of a number depends on what is computed with it.
        limits = replace(self._limits, first_slots=len(taken), first_length=longest)
        most_tokens = self._iteration_tokens
        if self._model.device.type == "cpu":
            few = max(_BATCH_TOKENS_ON_CPU, _BATCH_WORK_ON_CPU // self._model.parameter_count)
            most_tokens = min(few, most_tokens)
        else:
            limits = replace(limits, bytes=limits.bytes // BATCHES_AT_ONCE)
        batch.scheduler = scheduler = SlotScheduler(
            self._model,
            limits,
            self._counters,
            iteration_tokens=most_tokens,
            # No request is answered before all are done.
            most_active=len(taken),
            # For the same reason, no tenant counts as gone after some time.
            clock=lambda: 0.0,
        )
        for request, policy in taken:
            # Sessions would make the result depend on earlier calls; here each request is independent.
            alone = request.model_copy(update={"session_id": ""})
            states, refused = self._intake.states([(alone, policy)], batch.deliver)
            scheduler.add(states)
            batch.outcomes += [*states, *refused]
        return scheduler

    def give_up(self, batch: Batch, error: TinkerGymError) -> None:
        """Answer all requests of a batch with an error."""
        if batch.scheduler is None:
            for _, policy in batch.taken:
                if policy is not None:
                    self._model.policies.leave(policy)
        else:
            self._intake.left(batch.scheduler.drain(error))
        deliver_to(batch.deliver, [failure(request, error) for request, _ in batch.taken])


def _answer(outcome: RequestState | Completion | SampleFailure) -> Completion | SampleFailure:
    answer = outcome.answer if isinstance(outcome, RequestState) else outcome
    assert answer is not None
    return answer
