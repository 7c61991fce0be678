"""Shared by every kind of job loop: start from a checkpoint, end exactly once, and keep what was learned.

A loop runs in a thread of the pool worker. What it needs to continue after a kill is in the store and in its
checkpoints before it is acknowledged.
"""

from __future__ import annotations

import logging
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, TypeVar

from backend.episodes.logprob_gaps import gaps_of
from backend.episodes.recorded_actions import actions_of
from backend.errors import (
    SERVICE_LOG,
    BlobsUnavailableError,
    ClientSilentError,
    LeaseLostError,
    PausedError,
    RankLostError,
    WorkerStoppingError,
)
from backend.jobs.attempt_facts import attempt_fact
from backend.jobs.job_context import JobContext, SpecT_co
from backend.jobs.job_control import NO_MEMORY, RANK_LOST, UNAVAILABLE, begin_again
from backend.processes.exhaustion import OUT_OF_MEMORY, end_if_exhausted, ran_out_of_memory
from backend.store.kept_episodes import KeptEpisodes
from tinkergym.errors import (
    InternalServiceError,
    JobCancelledError,
    ServiceUnavailableError,
    TinkerGymError,
)
from tinkergym.schema.events import ErrorView, JobState, WarningEvent
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.steering import settings_at

_log = logging.getLogger(__name__)

T = TypeVar("T")

_BLOBS_SECONDS, _MOST_BLOBS_SECONDS = 0.2, 5.0
"""After which a waiting job tries unavailable blobs again: at first, and at most."""


class JobLoop(ABC, Generic[SpecT_co]):
    """One job's loop. `run` returns when the job has ended, was returned to the queue, or was lost."""

    def __init__(self, context: JobContext[SpecT_co]) -> None:
        self._context = context
        self._saved_step = 0
        self._done_step = 0

    @abstractmethod
    def _run(self) -> None:
        """Run the job from where the last attempt stopped to its end."""

    def run(self) -> None:
        """Run the job to its end. All outcomes are recorded; nothing is raised."""
        context = self._context
        try:
            context.store.add_facts(
                context.lease, [attempt_fact(context.lease, context.place, context.model_fingerprint)]
            )
            self._run()
        except LeaseLostError as error:
            # Not even the end is recorded: another worker has the job.
            _log.warning("%s", error)
        except WorkerStoppingError:
            self._hand_back()
        except (ClientSilentError, PausedError) as why:
            self._give_place_up(why)
        except JobCancelledError as error:
            # The policy stays usable, here and after a failure.
            self._quietly(self._save_last_good)
            self._end(JobState.CANCELLED, error)
        except TinkerGymError as error:
            failure = error  # The name is deleted at the end of this block.
            if context.control.stopping:
                # While the worker ends its parts, a job that still uses one may get any error.
                self._hand_back()
            elif isinstance(error, RankLostError):
                self._quietly(lambda: self._begin_again(RANK_LOST, "rank_lost", failure))
            elif isinstance(error, ServiceUnavailableError):
                # A locked database, or an engine that is restarting.
                self._quietly(self._save_if_recorded)
                self._quietly(lambda: self._begin_again(UNAVAILABLE, "service_unavailable", failure))
            else:
                self._quietly(self._save_last_good)
                self._end(JobState.FAILED, error)
        except Exception as error:
            _log.exception("%s failed", context.job_id)
            self._fail(error)
        finally:
            self._quietly(self._clean_up)
            for policy in context.policies.values():
                policy.release()
                self._quietly(policy.forget)

    def _fail(self, error: Exception) -> None:
        unexpected = _unexpected(error, self._context.job_id)
        # Perhaps others took the memory; a new worker begins without them.
        again = partial(self._begin_again, NO_MEMORY, OUT_OF_MEMORY, unexpected)
        end_if_exhausted(error, first=partial(self._quietly, again))
        self._end(JobState.FAILED, unexpected)

    def _give_place_up(self, why: ClientSilentError | PausedError) -> None:
        context, step = self._context, self._done_step
        self._quietly(self._save_if_recorded)
        if isinstance(why, PausedError):
            reason, asked = f"after step {step}: {why.message}", why.asked
            self._quietly(lambda: context.store.pause(context.lease, reason, asked=asked))
        else:
            self._quietly(lambda: context.store.park(context.lease, str(why)))

    def _clean_up(self) -> None:
        """Release resources of this kind of job."""

    def _begin_from_checkpoint(self) -> None:
        """Create the job's policies, from the last attempt's checkpoints or new, all at the same step."""
        policies = list(self._context.policies.values())
        steps = [self._with_blobs(policy.restore) for policy in policies]
        # A kill between two checkpoints, or a damaged one, may leave a policy behind the others.
        while len(set(steps)) > 1:
            first = min(steps)
            steps = [
                step if step == first else self._with_blobs(partial(policy.restore, first))
                for policy, step in zip(policies, steps, strict=True)
            ]
        self._saved_step = self._done_step = steps[0]

    def _with_blobs(self, act: Callable[[], T]) -> T:
        """Read or write blobs; while they are unavailable, wait with that as the job's reason, and try again.

        Nothing is lost meanwhile: the job keeps its lease and its policies.

        Raises:
            JobCancelledError: And other errors of `JobControl.check_within_step`.
        """
        context, told, pause = self._context, "", _BLOBS_SECONDS
        while True:
            try:
                done = act()
            except BlobsUnavailableError as error:
                if context.control.stopping:
                    raise
                if error.message != told:
                    told = error.message
                    self._explain(told)
                context.control.wait(pause)
                context.control.check_within_step()
                pause = min(2 * pause, _MOST_BLOBS_SECONDS)
            else:
                if told:
                    self._explain("the blob store is available again")
                return done

    def _explain(self, reason: str) -> None:
        """Change the reason of the job's state."""
        context = self._context
        context.store.set_state(context.lease, context.store.job(context.job_id).state, reason)

    def _resumed_from(self) -> str:
        if self._context.lease.attempt == 1:
            return ""
        return (
            f"resumed after step {self._done_step}" if self._done_step else "started again from the beginning"
        )

    def _settings_at(self, step: int) -> JobSpec:
        """Return the job's settings for a step, including its owner's changes."""
        context = self._context
        updates = context.store.take_updates(context.lease, step)
        return settings_at(context.lease.spec, updates, step)

    def _check_budget(self) -> None:
        """Pause the job before its next step if its budget is used up; a heartbeat may check too late."""
        context = self._context
        request = context.store.stop_request(context.job_id, time.time())
        if request.pause:
            context.control.pause(request.pause, asked=request.asked)

    def _let_engine_sleep(self) -> None:
        """Let the engine free its memory for the learner, if configured; publishing wakes it."""
        if self._context.sleep_while_learning:
            next(iter(self._context.policies.values())).let_engine_sleep()

    def _save_what_is_done(self) -> None:
        """Save the policies, which are those of `_done_step`, if they have no checkpoints yet."""
        if self._done_step > self._saved_step:
            self._save(self._done_step)

    def _save(self, step: int) -> None:
        """Save the policies, which are those of `step`."""
        context = self._context
        for policy in context.policies.values():
            self._with_blobs(partial(policy.save, step))
        # Only now: until all are saved, the last step that all have is an older one.
        for policy in context.policies.values():
            policy.tidy(step)
        self._saved_step = step
        with self._context.clock.part("certificate"):
            gaps = self._context.evidence.gaps.take()
            self._with_blobs(lambda: self._keep_episodes(step, gaps))
        # Last: until the files are written, the database has the only copy.
        context.store.discard_episodes(context.lease, through_step=step)

    def _keep_episodes(self, step: int, gaps: Mapping[int, bytes]) -> None:
        """Write the episodes up to a step into files, before they are deleted from the database."""
        context = self._context
        spec: PlayedSpec | None = context.spec.played
        if spec is None or spec.keep_episodes == 0:
            return
        kept = KeptEpisodes(context.files)
        for number, packed in context.store.packed_episodes(context.job_id, step):
            kept.write(number, packed, epoch=context.lease.epoch)
        for number, body in gaps.items():
            gaps_of(context.files).write(number, body, epoch=context.lease.epoch)
        if spec.keep_episodes is not None:
            # Only after the checkpoint is recorded under the lease: a worker that lost the job removes
            # nothing.
            kept.keep_newest(spec.keep_episodes)
            actions_of(context.files).keep_newest(spec.keep_episodes)
            gaps_of(context.files).keep_newest(spec.keep_episodes)

    def _save_last_good(self) -> None:
        """Save the version of the last finished step if the interrupted one has not changed the policy."""
        context = self._context
        policies = context.policies.values()
        if not any(policy.is_changing for policy in policies) and self._done_step > self._saved_step:
            for policy in policies:
                # A gradient of a step that will never be finished; a policy with a pending gradient is not
                # saved.
                policy.forget_gradient()
            self._save_what_is_done()

    def _save_if_recorded(self) -> None:
        """Save the version of the last finished step for the next attempt.

        Not if the step is not recorded in the store: the next attempt would continue after it without
        recording it.
        """
        if self._context.store.job(self._context.job_id).step >= self._done_step:
            self._save_last_good()

    def _begin_again(self, why: str, warning: str, error: TinkerGymError) -> None:
        context = self._context
        if isinstance(error, BlobsUnavailableError):
            # However often: nothing is wrong with the job.
            self._explain(str(error))
            context.control.wait(_MOST_BLOBS_SECONDS)
            context.store.release(context.lease, str(error))
            return
        context.store.append_event(
            context.lease, WarningEvent(name=warning, message=str(error), step=self._done_step)
        )
        begin_again(context.store, context.lease, why, error)

    def _hand_back(self) -> None:
        context = self._context
        _log.info("%s returns to the queue", context.job_id)
        # If the worker has no time for it, the previous checkpoint stays the newest.
        self._quietly(self._save_if_recorded)
        self._quietly(lambda: context.store.release(context.lease))

    def _end(self, state: JobState, error: TinkerGymError) -> None:
        context = self._context
        view = None if state is JobState.CANCELLED else ErrorView.model_validate(error.to_wire())
        self._quietly(lambda: context.store.set_state(context.lease, state, str(error), view))

    def _quietly(self, act: Callable[[], object]) -> None:
        """Do one of the final actions of a job. If it fails too, this is logged and the lease expires."""
        try:
            act()
        except Exception:
            _log.exception("%s: unclean end", self._context.job_id)


def _unexpected(error: Exception, job_id: str) -> InternalServiceError:
    where = traceback.extract_tb(error.__traceback__)[-1]
    at = f"{error!r} at {where.name}:{where.lineno}"
    if ran_out_of_memory(error):
        return InternalServiceError(
            f"the model's worker ran out of memory: {at}",
            hint=f"if it has a checkpoint, start one with initial_policy={job_id!r}, shorter texts and fewer "
            "episodes at once; docs/operating/troubleshooting.md says how the operator gives a model more",
            code=OUT_OF_MEMORY,
        )
    return InternalServiceError(
        f"unexpected error in the job loop: {at}", hint=f"{SERVICE_LOG} has the traceback"
    )
