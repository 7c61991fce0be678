"""The loop of jobs whose policy plays: rollout, learning, publishing, also from where a killed loop stopped.

What differs between kinds of such jobs is their `Strategy`. The loop runs in a thread of the pool worker.
What it needs to continue after a kill is stored before it is acknowledged.

What overlaps with what in a step, if every token is of the newest version (`_step`; time runs to the right):

                 begin n+1 early          publish n
    this thread  |...... learn on step n ......|. record n, save .|...... wait for the rest of n+1 ......|
    learner      |##############################|  copies weights  |                                      |
    workers      |  lease n+1, reset, render    |############### play step n+1 ###########################|
    engine       |  keeps requests for version n|############ samples with version n #####################|
    store        |                              |                  | results of n+1 become acknowledged   |
    evaluations  |  of earlier versions, in the background, if the job is not in lockstep                 |

- No token of step n+1 is sampled before version n is published; learner and engine never compute together.
- Recording and saving step n cost nothing while step n+1 is played. Results of step n+1 wait for that record:
  a stored result needs the hash of the weights that sampled it.
- A killed loop resumes from its last checkpoint and learns again from the stored results of later steps.

With `max_staleness` (`_train_ahead`) steps n+1 to n+s are open while step n is learned from: then engine and
learner compute together, and a publish lets running completions finish with their version.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from backend.episodes.episode_board import EpisodeBoard
from backend.episodes.job_board import JobBoard
from backend.episodes.played import Played
from backend.episodes.staleness import within_bound
from backend.jobs.all_policies import AllPolicies, Taken, prompts_of, sha256_of
from backend.jobs.checkpoint_notes import CheckpointNotes
from backend.jobs.job_context import JobContext
from backend.jobs.job_loop import JobLoop
from backend.jobs.learn_phase import Learned
from backend.jobs.rollout_phase import RolloutPhase
from backend.jobs.step_evaluations import StepEvaluations
from backend.jobs.step_record import StepRecord
from backend.jobs.strategy import Strategy
from tinkergym.schema.events import JobState, WarningEvent
from tinkergym.schema.jobs.played_spec import PlayedSpec

_LOOK_SECONDS = 0.5
"""How often a job that waits for its evaluations checks whether it should end."""

_EARLY_SHARE = 0.02
"""The part of an episode's time limit that an early episode may spend waiting for its policy."""


class PlayedJob(JobLoop[PlayedSpec]):
    """One job whose policy plays episodes to learn from them: the order of its parts."""

    def __init__(self, context: JobContext[PlayedSpec], strategy: Strategy) -> None:
        super().__init__(context)
        self._strategy = strategy
        self._policies = AllPolicies(context.policies)
        self._notes = CheckpointNotes(context, self._policies)
        self._records = StepRecord(context, self._policies, strategy)
        self._rollout = RolloutPhase(
            context, self._notes.league, partial(strategy.replacements, context.spec)
        )
        self._evaluations = StepEvaluations(context)
        self._begun = 0
        """Newest step with episodes on the board."""
        self._learning_seconds: float | None = None
        """Duration of the last update; None before the first."""
        self._last_played: Played = []
        """The last step's episodes."""

    def _run(self) -> None:
        context, spec = self._context, self._context.spec
        self._strategy.open(context)
        self._begin_from_checkpoint()
        self._notes.restore(self._done_step)
        self._open_board()
        context.store.set_state(context.lease, JobState.RUNNING, self._resumed_from())
        self._evaluations.open()
        if self._evaluations.stop_reason:
            self._evaluations.end_at(self._done_step)
        self._evaluations.begin_left_over(self._done_step)
        self._finish_evaluations(only_in_lockstep=True)
        if self._done_step < spec.steps and not self._evaluations.stop_reason:
            self._train_ahead() if spec.versions_ahead else self._train()
            # Before the checkpoint: a job that resumes after it has nothing left to do.
            self._compare_last_version()
            self._save_what_is_done()
            self._evaluations.end_at(self._done_step)
            self._evaluations.begin(self._done_step)
        self._finish_evaluations()
        self._records.warn_of_lost_episodes()
        done = f"step {self._done_step} of {spec.steps} is done"
        reason = self._evaluations.stop_reason
        context.store.set_state(context.lease, JobState.COMPLETED, f"{done}: {reason}" if reason else done)

    def _open_board(self) -> None:
        context, spec = self._context, self._context.spec
        context.boards.open(
            JobBoard(
                name=context.job_id,
                board=EpisodeBoard(
                    lease_seconds=context.lease_seconds,
                    lockstep=context.in_lockstep,
                    ahead=spec.versions_ahead,
                    by_group=spec.scored_by_group,
                ),
                save=self._records.save_episodes,
                for_server_workers=spec.rollout == "server",
                limits=context.limits,
                other_limits=context.other_limits,
                tenant=context.lease.tenant_id,
                environment="+".join(sorted({one.id for one in spec.own_environments.values()})),
            )
        )
        context.boards.step_recorded(context.job_id, self._done_step)

    def _finish_evaluations(self, *, only_in_lockstep: bool = False) -> None:
        """Wait for the running evaluations.

        Args:
            only_in_lockstep: Only if other requests would change the bits of training.
        """
        if only_in_lockstep and not self._context.in_lockstep:
            return
        with self._context.clock.part("evaluate"):
            while not self._evaluations.collect(wait_seconds=_LOOK_SECONDS):
                self._context.control.check()
                self._rollout.check_client()

    def _train(self) -> None:
        context, spec = self._context, self._context.spec
        played = self._begin(self._done_step + 1)
        for step in range(self._done_step + 1, spec.steps + 1):
            if played is None:
                with context.clock.part("rollout"):
                    played = self._rollout.finish(step)
            context.control.check()
            played = self._step(step, played)
            if self._evaluations.stop_reason:
                return

    def _step(self, step: int, played: Played) -> Played | None:
        """Train on a step's episodes, begin the next step, and record this one while that is played.

        Returns:
            The next step's episodes if they are stored already, else None.
        """
        context, spec = self._context, self._context.spec
        self._records.refuse_bad_episodes(step, played)
        self._let_engine_sleep()
        last = step == spec.steps
        if not last:
            self._begin_early(step + 1)
        begun = time.monotonic()
        learned = self._learned(step, played)
        self._learning_seconds = time.monotonic() - begun
        with context.clock.part("weights"):
            taken = self._policies.take_weights()
        self._check_replay(step, taken)
        # In lockstep an evaluation has the engine to itself: its requests would change the batches, and so
        # the bits, of the next step.
        alone = context.in_lockstep and self._evaluations.is_due(step)
        following = None if last or alone else self._begin(step + 1, taken)
        # Otherwise `_begin` has published it.
        if last or alone:
            self._policies.publish(step, taken)
        self._finish_step(step, played, learned, sha256_of(taken))
        if alone and not last:
            self._finish_evaluations()
            following = None if self._evaluations.stop_reason else self._begin(step + 1, taken)
        return following

    def _begin_early(self, step: int) -> None:
        """Let workers prepare a step's episodes; the first token waits until its version is published."""
        context, spec = self._context, self._context.spec
        if (
            # A script's own loop starts episodes by itself.
            spec.rollout == "script"
            or context.in_lockstep
            or context.sleep_while_learning
            # Episodes stored by an earlier attempt may prove to be of other weights.
            or context.lease.attempt > 1
            or self._learning_seconds is None
            # An episode's time runs while it waits.
            or self._learning_seconds > _EARLY_SHARE * spec.limits.episode_timeout_seconds
        ):
            return
        self._policies.expect_requests_for(step - 1)
        with context.clock.part("post"):
            self._rollout.begin(step)
        self._begun = step

    def _begin(self, step: int, taken: Taken | None = None) -> Played | None:
        """Begin a step's rollout; returns its episodes at once if an earlier attempt stored all of them.

        Args:
            step: The step.
            taken: The weights that play it; None means the learner's.
        """
        context = self._context
        if taken is None:
            taken = self._policies.take_weights()
        # Also before stored episodes: a step that teaches nothing is compared by tokens sampled now, and the
        # run's certificate has a publish for each comparison of an attempt.
        with context.clock.part("publish"):
            self._policies.publish(step - 1, taken)
        if context.lease.attempt > 1:
            stored = self._rollout.stored(step)
            if stored is not None:
                return stored
        with context.clock.part("post"):
            if self._begun < step:
                self._rollout.begin(step)
                self._begun = step
            self._policies.answer_kept_requests()
        return None

    def _train_ahead(self) -> None:
        """Like `_train`, but the episodes of later steps are played while a step is trained.

        A step begins when the version that is `max_staleness` before the one that will train on it is
        published. So no sampled token can be too stale, however long its episode takes.
        """
        context, spec = self._context, self._context.spec
        step = self._done_step
        self._publish_ahead(step, self._policies.take_weights())
        self._begin_through(step + 1)
        while step < spec.steps:
            step += 1
            with context.clock.part("rollout"):
                played = within_bound(spec, step, self._rollout.finish(step))
            context.control.check()
            self._records.refuse_bad_episodes(step, played)
            self._begin_through(step + spec.versions_ahead)
            learned = self._learned(step, played)
            with context.clock.part("weights"):
                taken = self._policies.take_weights()
            if self._check_replay(step, taken):
                # Results already on the board may be of weights that no longer exist.
                self._begun = step
                self._begin_through(step + spec.versions_ahead)
            self._publish_ahead(step, taken)
            self._finish_step(step, played, learned, sha256_of(taken))
            if self._evaluations.stop_reason:
                return

    def _publish_ahead(self, version: int, taken: Taken) -> None:
        context = self._context
        with context.clock.part("publish"):
            context.boards.publishing(context.job_id, version)
            self._policies.publish(version, taken, let_finish=True)

    def _begin_through(self, step: int) -> None:
        """Begin the rollout of every step up to this one that has not begun."""
        first, last = max(self._begun, self._done_step) + 1, min(step, self._context.spec.steps)
        with self._context.clock.part("post"):
            for number in range(first, last + 1):
                self._rollout.begin(number)
                self._begun = number

    def _learned(self, step: int, played: Played) -> Learned:
        """Train on a step's episodes, with the settings of that step."""
        return self._strategy.learn(replace(self._context, spec=self._played_at(step)), step, played)

    def _played_at(self, step: int) -> PlayedSpec:
        played = self._settings_at(step).played
        assert played, "a job keeps its kind"
        return played

    def _finish_step(self, step: int, played: Played, learned: Learned, sha256: dict[str, str]) -> None:
        """Record a step, and save a checkpoint if one is due."""
        context, spec = self._context, self._context.spec
        self._records.write(step, played, learned, sha256)
        self._done_step = step
        # Before the notes, which keep what is remembered.
        self._strategy.remember(context, self._played_at(step).updated_at(step), played)
        self._notes.take(step, played, is_saved=self._is_saved(step))
        self._policies.step_finished()
        self._last_played = played
        # A job that is done completes, whatever it has used.
        if step < spec.steps:
            self._check_budget()
        if self._is_saved(step) and step != spec.steps:
            with context.clock.part("checkpoint"):
                self._save_what_is_done()
            self._evaluations.begin(step)
        self._evaluations.collect()

    def _is_saved(self, step: int) -> bool:
        """Whether a step's version gets a checkpoint."""
        spec = self._context.spec
        due = step % spec.checkpoint_every == 0 or step == spec.steps
        return due or self._notes.league.is_snapshot(step) or self._evaluations.is_due(step)

    def _save(self, step: int) -> None:
        super()._save(step)
        # Only now: a job that resumes from an earlier checkpoint still needs what that one names.
        self._notes.keep_versions(self._done_step, free=True)

    def _clean_up(self) -> None:
        self._strategy.close()
        self._context.boards.close(self._context.job_id)
        self._evaluations.close()
        self._policies.refuse_kept_requests()

    def _compare_last_version(self) -> None:
        """Compare learner and engine on the last version, which plays no episodes."""
        context = self._context
        self._policies.probed_parity(
            self._done_step,
            prompts_of(context.job_id, self._last_played, context.policies),
            temperature=context.spec.sampling.temperature,
            allowed=context.parity_threshold,
        )
        context.store.add_facts(context.lease, self._policies.take_facts())

    def _check_replay(self, step: int, taken: Taken) -> bool:
        """Drop the stored episodes after `step` if they were sampled with different weights.

        Returns:
            Whether the weights differ.
        """
        context = self._context
        if context.lease.attempt == 1:
            return False
        if not self._policies.differ_from_recorded(step, taken):
            return False
        dropped = context.store.discard_episodes(context.lease, from_step=step + 1)
        warning = WarningEvent(
            name="replay_differs",
            message=f"repeating step {step} gave different weights than the first time (another "
            f"machine or thread count?); {dropped} stored episodes of later steps were dropped and are "
            f"played again",
            step=step,
        )
        context.store.append_event(context.lease, warning)
        return True
