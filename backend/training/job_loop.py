"""What every kind of job loop does: begin from a checkpoint, end exactly once, and keep what was learned.

A loop runs in a thread of the pool worker. What it needs to go on after a kill is in the store and in its
checkpoints before anybody knows of it.
"""

from __future__ import annotations

import logging
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic

from backend.errors import SERVICE_LOG, LeaseLostError, RankLostError
from backend.training import checkpointing
from backend.training.another_attempt import RANK_LOST, UNAVAILABLE, begin_again
from backend.training.job_context import JobContext, SpecT_co
from backend.training.job_control import ClientSilentError, WorkerStoppingError
from backend.weights import PolicyWeights
from tinkergym.errors import (
    InternalServiceError,
    JobCancelledError,
    ParityError,
    ServiceUnavailableError,
    TinkerGymError,
)
from tinkergym.wire import ErrorView, JobState, WarningEvent

_log = logging.getLogger(__name__)


class JobLoop(ABC, Generic[SpecT_co]):
    """One job's loop. `run` returns when the job has ended, was handed back or was lost."""

    def __init__(self, context: JobContext[SpecT_co]) -> None:
        self._context = context
        self._saved_step = 0
        self._done_step = 0

    @abstractmethod
    def _run(self) -> None:
        """Do the job, from where the last attempt stood to its end."""

    def run(self) -> None:
        """Run the job to its end. Whatever happens is recorded; nothing is raised."""
        context = self._context
        try:
            self._run()
        except LeaseLostError as error:
            _log.warning("%s", error)
        except WorkerStoppingError:
            self._hand_back()
        except ClientSilentError as error:
            reason = str(error)
            self._quietly(self._save_if_recorded)
            self._quietly(lambda: context.store.park(context.lease, reason))
        except JobCancelledError as error:
            # What was learned stays usable, here and after a failure.
            self._quietly(self._save_last_good)
            self._end(JobState.CANCELLED, error)
        except TinkerGymError as error:
            failure = error  # the name ends with this block
            if context.control.stopping:
                # The worker ends its parts, and a job that still uses one is told all kinds of things.
                self._hand_back()
            elif isinstance(error, RankLostError):
                self._quietly(lambda: self._begin_again(RANK_LOST, "rank_lost", failure))
            elif isinstance(error, ServiceUnavailableError):
                # A locked database, or an engine that starts anew.
                self._quietly(self._save_if_recorded)
                self._quietly(lambda: self._begin_again(UNAVAILABLE, "service_unavailable", failure))
            else:
                self._quietly(self._save_last_good)
                self._end(JobState.FAILED, error)
        except Exception as error:
            _log.exception("%s failed", context.job_id)
            where = traceback.extract_tb(error.__traceback__)[-1]
            wrapped = InternalServiceError(
                f"the job loop met an error it did not expect: {error!r} at {where.name}:{where.lineno}",
                hint=f"{SERVICE_LOG} has the traceback",
            )
            self._end(JobState.FAILED, wrapped)
        finally:
            self._quietly(self._clean_up)
            context.policies.release(context.job_id)
            self._quietly(lambda: checkpointing.forget_policy(context))

    def _clean_up(self) -> None:
        """Let go of what only this kind of job holds."""

    def _begin_from_checkpoint(self) -> None:
        """Make the job's policy, as the last attempt saved it or new."""
        context = self._context
        context.policies.hold(context.job_id, from_base=not context.spec.initial_policy)
        self._saved_step = self._done_step = checkpointing.restore(context)

    def _resumed_from(self) -> str:
        if self._context.lease.attempt == 1:
            return ""
        return (
            f"resumed after step {self._done_step}" if self._done_step else "started again from the beginning"
        )

    def _publish(
        self, version: int, weights: PolicyWeights, hashed: Future[str], *, let_finish: bool = False
    ) -> None:
        """Give the engine a version of the policy; `hashed` is what `hash_aside` returned for it.

        Raises:
            ParityError: Other weights arrived.
        """
        context = self._context
        arrived = context.engine.publish(context.job_id, version, weights, let_finish=let_finish)
        sha256, loaded = hashed.result(), context.engine.loaded().get(context.job_id)
        if loaded != version or arrived != sha256:
            raise ParityError(
                f"version {version} of the policy was published with hash {sha256[:12]}, but the engine "
                f"holds version {loaded} and was given {arrived[:12]}",
                hint="report this with the job's log",
            )

    def _let_engine_sleep(self) -> None:
        """Have the engine give its memory to the learner, if the service wants it so; publishing wakes it."""
        if self._context.sleep_while_learning:
            self._context.engine.sleep()

    def _save_what_is_done(self) -> None:
        """Save the policy, which is that of `_done_step`, if there is no checkpoint of it."""
        if self._done_step > self._saved_step:
            checkpointing.save(self._context, self._done_step)
            self._saved_step = self._done_step

    def _save_last_good(self) -> None:
        """Save the version of the last finished step if the one that was broken off has changed nothing."""
        context = self._context
        if not context.change.begun and self._done_step > self._saved_step:
            # Of a step that will never be taken; a policy for which one waits is not saved.
            context.learner.forget_gradient(context.job_id)
            self._save_what_is_done()

    def _save_if_recorded(self) -> None:
        """Save the version of the last finished step, for the next attempt to go on from.

        Not if the store does not know of that step: the next attempt would go on after it and not record it.
        """
        if self._context.store.job(self._context.job_id).step >= self._done_step:
            self._save_last_good()

    def _begin_again(self, why: str, warning: str, error: TinkerGymError) -> None:
        context = self._context
        context.store.append_event(
            context.lease, WarningEvent(name=warning, message=str(error), step=self._done_step)
        )
        begin_again(context.store, context.lease, why, error)

    def _hand_back(self) -> None:
        context = self._context
        _log.info("%s goes back into the queue", context.job_id)
        # Where the worker's time does not suffice for it, the checkpoint before stays the newest.
        self._quietly(self._save_if_recorded)
        self._quietly(lambda: context.store.release(context.lease))

    def _end(self, state: JobState, error: TinkerGymError) -> None:
        context = self._context
        view = None if state is JobState.CANCELLED else ErrorView.model_validate(error.to_wire())
        self._quietly(lambda: context.store.set_state(context.lease, state, str(error), view))

    def _quietly(self, act: Callable[[], object]) -> None:
        """Do one of the last things of a job; if it fails too, the log has it and the lease runs out."""
        try:
            act()
        except Exception:
            _log.exception("%s: the end was not orderly", self._context.job_id)
