"""The RL job loop: rollout, learning, publishing, from the first step or from where a killed loop stood.

Runs in a thread of the pool worker. What it needs to go on after a kill is in the store before anybody knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from backend.training.episode_board import EpisodeBoard
from backend.training.job_context import JobContext
from backend.training.job_loop import JobLoop
from backend.training.learn_phase import Learned, learn
from backend.training.parity import probed_parity, prompt_of
from backend.training.rollout_phase import RolloutPhase
from backend.training.staleness import staleness_metrics, within_bound
from backend.training.step_clock import StepSeconds
from backend.training.step_report import (
    Played,
    episodes_to_read,
    failure_warnings,
    nothing_to_compare,
    spike_warnings,
    statistics,
)
from backend.training.turn_rewards import refuse_large_rewards
from backend.weights import PolicyWeights, hash_aside
from tinkergym.errors import TooManyFailedEpisodesError
from tinkergym.loop.trajectory import StopReason, reason_line
from tinkergym.wire import JobSpec, JobState, StepEvent, WarningEvent

_EARLY_SHARE = 0.02
"""Of an episode's time limit, which an episode that was begun early may spend waiting for its policy."""

_MEND_THE_ENVIRONMENT = "mend the environment (warnings hold the tracebacks) or raise max_failed_fraction"
_WHAT_TO_DO = {
    StopReason.ENVIRONMENT_TIMEOUT.value: (
        "raise limits.step_timeout_seconds, or mend the environment (warnings say where it was), or raise "
        "max_failed_fraction"
    ),
    StopReason.SAMPLING_FAILED.value: (
        "the model's sampler refuses, it is not the environment that fails; warnings hold all that it says"
    ),
}
"""By what most of a step's failed episodes ended with."""

Learn = Callable[[JobContext[JobSpec], int, Played], Learned]
"""What becomes of a step's episodes."""


class RLJob(JobLoop[JobSpec]):
    """Jobs whose policy plays: RL, and with another way to learn from the episodes, distillation."""

    def __init__(self, context: JobContext[JobSpec], learn: Learn = learn) -> None:
        super().__init__(context)
        self._rollout = RolloutPhase(context)
        self._begun = 0
        """Newest step whose episodes are on the board."""
        self._learning_seconds: float | None = None
        """How long the last update took; None before the first."""
        self._is_silent = False
        """Whether the newest step's rewards taught nothing; the first of several such steps is told."""
        self._last_prompts: list[list[int]] = []
        """Of the last step's episodes."""
        self._learn = learn

    def _run(self) -> None:
        context, spec = self._context, self._context.spec
        self._begin_from_checkpoint()
        context.boards.open(
            context.job_id,
            EpisodeBoard(
                lease_seconds=context.lease_seconds,
                lockstep=context.in_lockstep,
                ahead=spec.max_staleness,
            ),
            lambda step, results: context.store.save_episodes(context.lease, step, results),
            for_server_workers=spec.rollout == "server",
            limits=context.learner.limits,
            owner=context.lease.tenant_id,
        )
        context.boards.step_recorded(context.job_id, self._done_step)
        context.store.set_state(context.lease, JobState.RUNNING, self._resumed_from())
        if self._done_step < spec.steps:
            self._train_ahead() if spec.max_staleness else self._train()
            self._save_what_is_done()
            # No episode will compare it.
            probed_parity(context, spec.steps, self._last_prompts, temperature=spec.sampling.temperature)
        self._tell_of_lost_episodes()
        context.store.set_state(
            context.lease, JobState.COMPLETED, f"step {spec.steps} of {spec.steps} is done"
        )

    def _tell_of_lost_episodes(self) -> None:
        context, spec = self._context, self._context.spec
        failed, episodes = context.store.episodes_failed(context.job_id)
        if failed > spec.warn_failed_fraction * episodes:
            warning = WarningEvent(
                name="episodes_lost",
                message=f"{failed} of the job's {episodes} episodes ({failed / episodes:.0%}) failed; "
                "each step's stop_reasons and warnings say why",
                step=spec.steps,
                count=failed,
            )
            context.store.append_event(context.lease, warning)

    def _train(self) -> None:
        context, spec = self._context, self._context.spec
        played = self._begin(self._done_step + 1)
        for step in range(self._done_step + 1, spec.steps + 1):
            if played is None:
                with context.clock.part("rollout"):
                    played = self._rollout.finish(step)
            context.control.check()
            played = self._step(step, played)

    def _train_ahead(self) -> None:
        """As `_train`, but the episodes of later steps are played while a step is learned from.

        A step is begun when the version that is `max_staleness` before the one that will learn from it is
        out. So no token is ever sampled that would be too stale, however long its episode takes.
        """
        context, spec = self._context, self._context.spec
        step = self._done_step
        weights = context.learner.weights(context.job_id)
        self._publish_ahead(step, weights, hash_aside(weights))
        self._begin_through(step + 1)
        while step < spec.steps:
            step += 1
            with context.clock.part("rollout"):
                played = within_bound(spec, step, self._rollout.finish(step))
            context.control.check()
            self._refuse_bad_episodes(step, played)
            self._begin_through(step + spec.max_staleness)
            learned = self._learn(context, step, played)
            with context.clock.part("weights"):
                weights = context.learner.weights(context.job_id)
            hashed = hash_aside(weights)
            if self._check_replay(step, hashed):
                # What is on the board already may hold results of weights that there are no more.
                self._begun = step
                self._begin_through(step + spec.max_staleness)
            self._publish_ahead(step, weights, hashed)
            self._wind_up(step, played, learned, hashed.result())

    def _publish_ahead(self, version: int, weights: PolicyWeights, hashed: Future[str]) -> None:
        context = self._context
        with context.clock.part("publish"):
            context.boards.publishing(context.job_id, version)
            self._publish(version, weights, hashed, let_finish=True)

    def _begin_through(self, step: int) -> None:
        """Begin the rollout of every step up to this one that has not begun."""
        with self._context.clock.part("post"):
            for number in range(
                max(self._begun, self._done_step) + 1, min(step, self._context.spec.steps) + 1
            ):
                self._rollout.begin(number)
                self._begun = number

    def _clean_up(self) -> None:
        self._context.boards.close(self._context.job_id)
        self._context.early.forget(self._context.job_id)

    def _begin(self, step: int, given: tuple[PolicyWeights, Future[str]] | None = None) -> Played | None:
        """Begin a step's rollout; returns its episodes at once if an earlier attempt stored them all.

        Args:
            step: Which.
            given: The weights that play it and their hash; None takes the learner's.
        """
        context = self._context
        if context.lease.attempt > 1:
            stored = self._rollout.stored(step)
            if stored is not None:
                return stored
        if given is None:
            weights = context.learner.weights(context.job_id)
            given = weights, hash_aside(weights)
        with context.clock.part("publish"):
            self._publish(step - 1, *given)
        with context.clock.part("post"):
            if self._begun < step:
                self._rollout.begin(step)
                self._begun = step
            context.early.published(context.job_id)
        return None

    def _begin_early(self, step: int) -> None:
        """Let workers prepare a step's episodes; the first token waits until its version is published."""
        context, spec = self._context, self._context.spec
        if (
            # A script's own loop begins an episode when it likes.
            spec.rollout == "script"
            or context.in_lockstep
            or context.sleep_while_learning
            # Episodes that an earlier attempt stored may yet prove to be of other weights.
            or context.lease.attempt > 1
            or self._learning_seconds is None
            # An episode's time runs while it waits.
            or self._learning_seconds > _EARLY_SHARE * spec.limits.episode_timeout_seconds
        ):
            return
        context.early.expect(context.job_id, step - 1)
        with context.clock.part("post"):
            self._rollout.begin(step)
        self._begun = step

    def _step(self, step: int, played: Played) -> Played | None:
        """Learn from a step's episodes, begin the next step, and record this one while that is played."""
        context, spec = self._context, self._context.spec
        self._refuse_bad_episodes(step, played)
        self._let_engine_sleep()
        last = step == spec.steps
        if not last:
            self._begin_early(step + 1)
        begun = time.monotonic()
        learned = self._learn(context, step, played)
        self._learning_seconds = time.monotonic() - begun
        with context.clock.part("weights"):
            weights = context.learner.weights(context.job_id)
        hashed = hash_aside(weights)
        self._check_replay(step, hashed)
        following = None if last else self._begin(step + 1, (weights, hashed))
        if last:
            self._publish(step, weights, hashed)
        self._wind_up(step, played, learned, hashed.result())
        return following

    def _wind_up(self, step: int, played: Played, learned: Learned, sha256: str) -> None:
        """Write a step down, and what was learned where that is due."""
        context, spec = self._context, self._context.spec
        seconds = context.clock.lap()
        with context.clock.part("record"):
            self._record(step, played, learned, sha256, seconds)
        self._done_step = step
        context.change.finished()
        if step == spec.steps:
            segments = [segment for _, result in played for segment in result.trajectory.segments]
            self._last_prompts = [
                prompt_of(segment.token_ids, segment.loss_mask)
                for segment in segments
                if any(segment.loss_mask)
            ]
        if step % spec.checkpoint_every == 0 and step != spec.steps:
            with context.clock.part("checkpoint"):
                self._save_what_is_done()

    def _refuse_bad_episodes(self, step: int, played: Played) -> None:
        context, spec = self._context, self._context.spec
        refuse_large_rewards(spec, played)
        warnings = failure_warnings(played, step)
        if not warnings:
            return
        context.store.append_events(context.lease, list(warnings))
        counted = statistics(played)
        if counted.failed_episodes > spec.max_failed_fraction * counted.episodes:
            worst = warnings[0]
            raise TooManyFailedEpisodesError(
                f"{counted.failed_episodes} of the {counted.episodes} episodes of step {step} failed, most "
                f"often with {worst.name} ({worst.count} times): {reason_line(worst.name, worst.message)}",
                hint=_WHAT_TO_DO.get(worst.name, _MEND_THE_ENVIRONMENT),
                field="max_failed_fraction",
            )

    def _record(self, step: int, played: Played, learned: Learned, sha256: str, seconds: StepSeconds) -> None:
        """Write the step down; only then results that its version sampled are acknowledged."""
        context, spec = self._context, self._context.spec
        counted = statistics(played)
        event = StepEvent(
            step=step,
            steps=spec.steps,
            policy_version=step,
            reward_mean=counted.reward_mean,
            reward_std=counted.reward_std,
            loss=learned.loss,
            episodes=counted.episodes,
            failed_episodes=counted.failed_episodes,
            stop_reasons=counted.stop_reasons,
            sampled_tokens=counted.sampled_tokens,
            turns=counted.turns,
            trained_tokens=learned.trained_tokens,
            tokens_per_second=counted.sampled_tokens / max(seconds.step, 1e-9),
            step_seconds=seconds.step,
            sampling_seconds=seconds.sampling,
            learning_seconds=seconds.learning,
            seconds_left=context.clock.expected(spec.steps - step),
            metrics={
                **learned.metrics,
                **counted.environment_metrics,
                **(staleness_metrics(step, played) if spec.max_staleness else {}),
                **seconds.parts,
                "retried_episodes": float(counted.retried_episodes),
            },
        )
        context.store.record_step(context.lease, event, sha256)
        context.boards.step_recorded(context.job_id, step)
        silence = nothing_to_compare(event)
        news = [silence] if silence is not None and not self._is_silent else []
        self._is_silent = silence is not None
        context.store.append_events(
            context.lease, [*spike_warnings(event), *news, *episodes_to_read(played, step)]
        )

    def _check_replay(self, step: int, hashed: Future[str]) -> bool:
        """Drop the stored episodes after `step` if they were sampled by other weights than it has now.

        Returns:
            Whether the weights differ.
        """
        context = self._context
        if context.lease.attempt == 1:
            return False
        known = context.store.version_sha256(context.job_id, step)
        if known is None or known == hashed.result():
            return False
        dropped = context.store.discard_episodes(context.lease, from_step=step + 1)
        context.store.append_event(
            context.lease,
            WarningEvent(
                name="replay_differs",
                message=f"repeating step {step} gave other weights than the first time (another machine or "
                f"thread count?); {dropped} stored episodes of later steps were dropped and are played again",
                step=step,
            ),
        )
        return True
