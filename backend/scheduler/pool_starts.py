"""Which models get a pool now, which wait for memory, and which are refused after failed starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from backend.admission.model_wishes import no_place
from backend.config import ServiceConfig
from backend.errors import SERVICE_LOG
from backend.scheduler.pools import Pools
from backend.scheduler.queue_reasons import START_ATTEMPTS
from backend.store.store import ServiceStore
from tinkergym.errors import (
    InternalServiceError,
    ServiceUnavailableError,
    TinkerGymError,
)
from tinkergym.schema.events import ErrorView, JobState

_REFUSED_AGAIN_SECONDS = 20.0
"""Interval between notes that a model which is only sampled has no room."""
_LONGEST_PAUSE_SECONDS = 60.0
"""Interval between attempts to start a pool that refuses to."""


class PoolStarts:
    """Starts pools for models that have none.

    Models that wait for memory are tried in order. A small one passes a large one if it fits into what is
    free, but idle pools end only for the first that waits, which would else never have all the room it needs.
    None passes one that has waited for longer than idle pools stay, and than a minute.
    After a failed start the model pauses; a start that succeeds clears all that was noted about it.
    """

    def __init__(self, store: ServiceStore, config: ServiceConfig, pools: Pools) -> None:
        self._store, self._config, self._pools = store, config, pools
        self.failures: Counter[str] = Counter()
        """Pools of each model that died in a row before they were ready."""
        self.without_room: dict[str, float] = {}
        """Models that wait for memory, and when this was last noted for sampling clients."""
        self._waits_since: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._impossible: dict[str, float] = {}
        """Models that have no place, and when this was last noted."""
        self._refused: set[str] = set()
        """Models whose pool reported why it cannot start. Their jobs failed, so only new jobs retry."""

    def start_missing(
        self,
        wanted: Sequence[str],
        queued_models: Collection[str],
        now: float,
        *,
        jobs: Mapping[str, int] | None = None,
    ) -> None:
        """Start the pools of wanted models that have none or too few, as far as memory allows.

        Args:
            wanted: Models that should have a pool.
            queued_models: Models that jobs wait for.
            now: Unix seconds.
            jobs: The number of jobs in each pool.
        """
        served = {
            model
            for model in self._pools.models.values()
            if model not in queued_models or not self._pools.may_have_another(model, jobs or {})
        }
        # A job submitted after a refusal may have a fixed cause, and should fail at once if not.
        without_pause = self._refused.intersection(queued_models)
        waited, self.without_room = self.without_room, {}
        for model in wanted:
            if model in served:
                continue
            if model not in without_pause and now < self._not_before.get(model, 0.0):
                continue
            preloaded = model in self._config.preload
            # The operator asked for preloaded models, so an estimate does not keep them from starting; if all
            # then use too much memory, idle pools of other models end.
            if preloaded or (
                not self._keeps_all_waiting(now)
                and self._pools.make_room([model], now, may_end=not self.without_room)
            ):
                if model in waited:
                    self._store.forget_refusal(model)
                self._pools.start(model, now)
            else:
                self._waits_since.setdefault(model, now)
                self.without_room[model] = self._note_no_room(model, waited.get(model, 0.0), now)
        for model in self._waits_since.keys() - self.without_room.keys():
            del self._waits_since[model]

    def note_impossible(self, found: Mapping[str, str], now: float) -> None:
        """Let the gateway refuse jobs on models that have no place on the present nodes.

        Args:
            found: See `ProcessRunner.impossible`.
            now: Unix seconds.
        """
        for name in self._impossible.keys() - found.keys():
            self._store.forget_refusal(name)
            del self._impossible[name]
        for name, reason in found.items():
            if now - self._impossible.get(name, 0.0) >= _REFUSED_AGAIN_SECONDS:
                self._store.note_refusal(name, no_place(reason), now)
                self._impossible[name] = now

    def succeeded(self, model: str) -> None:
        """Record that a model's pool is ready."""
        self.failures.pop(model, None)
        self._not_before.pop(model, None)
        self._refused.discard(model)
        self._store.forget_refusal(model)

    def failed(self, model: str, error: TinkerGymError | None, now: float) -> None:
        """Record that a model's pool ended before it was ready; fails its jobs if trying again is no use.

        Args:
            model: The model.
            error: Why it cannot start; None if it died.
            now: Unix seconds.
        """
        failures = self.failures[model] + 1
        # Another pool of the model takes its jobs, however often this one fails.
        alone = model not in self._pools.ready
        if alone and (error is not None or failures >= START_ATTEMPTS):
            self._refuse(model, error, now)
        if error is None or not alone:
            self._refused.discard(model)
        else:
            self._refused.add(model)
        # Last: if the store refused a write, all of this is done again, and the start counts once.
        self.failures[model] = failures
        self._not_before[model] = now + min(2.0**failures, _LONGEST_PAUSE_SECONDS)

    def clock_set_back(self) -> None:
        """Forget times of the old clock, which are in the future."""
        self._not_before.clear()
        self._waits_since.clear()
        self._impossible = dict.fromkeys(self._impossible, 0.0)

    def _keeps_all_waiting(self, now: float) -> bool:
        """Whether a model has waited for memory so long that no other starts before it."""
        return any(
            now - self._waits_since[model] > self._config.passed_seconds for model in self.without_room
        )

    def _refuse(self, model: str, error: TinkerGymError | None, now: float) -> None:
        reason = error or InternalServiceError(
            f"the worker for model {model!r} died {START_ATTEMPTS} times while it started",
            hint=f"see {SERVICE_LOG}; the model may not fit into memory",
        )
        view = ErrorView.model_validate(reason.to_wire())
        self._store.note_refusal(model, view, now)
        for job in self._store.queued_jobs(model=model):
            self._store.finish_unleased(job.job_id, JobState.FAILED, str(reason), view)

    def _note_no_room(self, model: str, noted_at: float, now: float) -> float:
        """Let the gateway tell sampling clients that a model waits for memory; returns when it was noted."""
        if now - noted_at < _REFUSED_AGAIN_SECONDS:
            return noted_at
        error = ServiceUnavailableError(self._pools.why_no_room(model), hint="try again later")
        self._store.note_refusal(model, ErrorView.model_validate(error.to_wire()), now)
        return now
