"""The loop of jobs whose policy plays: rollout, learning, publishing, also from where a killed loop stopped.

What differs between kinds of such jobs is their `Strategy`.

Runs in a thread of the pool worker. What it needs to continue after a kill is stored before it is
acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from backend.episodes.episode_board import EpisodeBoard
from backend.episodes.job_board import JobBoard
from backend.episodes.league_book import LeagueBook
from backend.episodes.played import Played, trained_seats
from backend.episodes.recorded_actions import record
from backend.episodes.staleness import staleness_metrics, within_bound
from backend.jobs.all_policies import AllPolicies, Taken, sha256_of
from backend.jobs.collapse_watch import CollapseWatch, command_from, guard_metrics
from backend.jobs.completions import completion_metrics, speed_metrics, waste_warnings
from backend.jobs.environment_report import per_environment
from backend.jobs.evaluations import Evaluations
from backend.jobs.job_context import JobContext
from backend.jobs.job_loop import JobLoop
from backend.jobs.learn_phase import Learned
from backend.jobs.rollout_phase import RolloutPhase
from backend.jobs.step_clock import StepSeconds
from backend.jobs.step_report import (
    episodes_to_read,
    failure_warnings,
    spike_warnings,
    statistics,
    too_many_failures,
    within_limit,
)
from backend.jobs.turn_rewards import refuse_large_rewards
from backend.jobs.zero_variance import nothing_to_compare
from backend.policies.parity import Prompt, prompt_of
from backend.store.facts import Fact
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import JobState, StepEvent, WarningEvent, metric_by_policy
from tinkergym.schema.ids import policy_of
from tinkergym.schema.jobs.played_spec import PlayedSpec

_LOOK_SECONDS = 0.5
"""How often a job that waits for its evaluations checks whether it should end."""

_MEMORY = "baselines"
"""Name of the algorithms' memory in the notes of a checkpoint."""

_EARLY_SHARE = 0.02
"""The part of an episode's time limit that an early episode may spend waiting for its policy."""


class _Noting(Protocol):
    """State that changes with the episodes of a step, and is restored from a checkpoint."""

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        ...


class Strategy:
    """How a kind of job learns from a step's episodes. Contexts and specs are of that kind."""

    def open(self, context: JobContext[Any]) -> None:
        """Prepare, when the loop begins."""

    def close(self) -> None:
        """Release what `open` took."""

    def replacements(self, spec: Any, played: Played) -> list[int]:
        """Return the numbers of groups to play in place of some; empty if the step is complete."""
        return []

    def kept(self, spec: Any, played: Played) -> Played:
        """Return the episodes of groups that were not replaced."""
        return played

    def learn(self, context: JobContext[Any], step: int, played: Played) -> Learned:
        """Update the policies."""
        raise NotImplementedError

    def remember(self, context: JobContext[Any], agents: Collection[str], played: Played) -> None:
        """Note what later steps need of a step, for the policies of `agents`, which learned from it."""

    def waste(self, spec: Any, event: StepEvent, played: Played) -> list[WarningEvent]:
        """Return warnings about why a step taught little."""
        return waste_warnings(event.step, played, rewards_count=False)


class PlayedJob(JobLoop[PlayedSpec]):
    """One job whose policy plays episodes to learn from them."""

    def __init__(self, context: JobContext[PlayedSpec], strategy: Strategy) -> None:
        super().__init__(context)
        self._strategy = strategy
        self._league = LeagueBook(context.spec)
        guard = context.spec.guard
        self._watch = None if guard is None else CollapseWatch(context.spec, guard)
        self._rollout = RolloutPhase(context, self._league, partial(strategy.replacements, context.spec))
        self._evaluations = Evaluations(context)
        self._begun = 0
        """Newest step with episodes on the board."""
        self._learning_seconds: float | None = None
        """Duration of the last update; None before the first."""
        self._wasteful: set[str] = set()
        """The warnings about the newest step's waste; only the first of several such steps is reported."""
        self._last_played: Played = []
        """The last step's episodes."""
        self._captured_seconds = 0.0
        """Time of `CapturedTokens` at the end of the last step."""
        self._policies = AllPolicies(context.policies)
        self._kept: dict[str, set[int]] = {}
        """Versions whose checkpoints are kept, by reason."""

    def _run(self) -> None:
        context, spec = self._context, self._context.spec
        self._strategy.open(context)
        self._begin_from_checkpoint()
        self._take_up_notes()
        context.boards.open(
            JobBoard(
                name=context.job_id,
                board=EpisodeBoard(
                    lease_seconds=context.lease_seconds,
                    lockstep=context.in_lockstep,
                    ahead=spec.versions_ahead,
                    by_group=spec.scored_by_group,
                ),
                save=self._save_episodes,
                for_server_workers=spec.rollout == "server",
                limits=context.limits,
                other_limits=context.other_limits,
                tenant=context.lease.tenant_id,
                environment="+".join(sorted({one.id for one in spec.own_environments.values()})),
            )
        )
        context.boards.step_recorded(context.job_id, self._done_step)
        context.store.set_state(context.lease, JobState.RUNNING, self._resumed_from())
        self._evaluations.open()
        if self._evaluations.stop_reason:
            self._evaluations.end_at(self._done_step)
        self._evaluations.begin_left_over(self._done_step)
        self._finish_evaluations(only_in_lockstep=True)
        if self._done_step < spec.steps and not self._evaluations.stop_reason:
            self._train_ahead() if spec.versions_ahead else self._train()
            # Before the checkpoint: a job that resumes after it has nothing left to do.
            self._compare_last_version(_prompts(self._last_played, context))
            self._save_what_is_done()
            self._evaluations.end_at(self._done_step)
            self._evaluations.begin(self._done_step)
        self._finish_evaluations()
        self._tell_of_lost_episodes()
        done = f"step {self._done_step} of {spec.steps} is done"
        reason = self._evaluations.stop_reason
        context.store.set_state(context.lease, JobState.COMPLETED, f"{done}: {reason}" if reason else done)

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
                self._rollout.look_for_client()

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
            if self._evaluations.stop_reason:
                return

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
            self._refuse_bad_episodes(step, played)
            self._begin_through(step + spec.versions_ahead)
            learned = self._learned(step, played)
            with context.clock.part("weights"):
                taken = self._policies.take_weights()
            if self._check_replay(step, taken):
                # Results already on the board may be of weights that no longer exist.
                self._begun = step
                self._begin_through(step + spec.versions_ahead)
            self._publish_ahead(step, taken)
            self._wind_up(step, played, learned, sha256_of(taken))
            if self._evaluations.stop_reason:
                return

    def _publish_ahead(self, version: int, taken: Taken) -> None:
        context = self._context
        with context.clock.part("publish"):
            context.boards.publishing(context.job_id, version)
            self._policies.publish(version, taken, let_finish=True)

    def _begin_through(self, step: int) -> None:
        """Begin the rollout of every step up to this one that has not begun."""
        with self._context.clock.part("post"):
            for number in range(
                max(self._begun, self._done_step) + 1, min(step, self._context.spec.steps) + 1
            ):
                self._rollout.begin(number)
                self._begun = number

    def _clean_up(self) -> None:
        self._strategy.close()
        self._context.boards.close(self._context.job_id)
        self._evaluations.close()
        self._policies.refuse_kept_requests()

    def _begin(self, step: int, taken: Taken | None = None) -> Played | None:
        """Begin a step's rollout; returns its episodes at once if an earlier attempt stored all of them.

        Args:
            step: The step.
            taken: The weights that play it; None means the learner's.
        """
        context = self._context
        if context.lease.attempt > 1:
            stored = self._rollout.stored(step)
            if stored is not None:
                return stored
        if taken is None:
            taken = self._policies.take_weights()
        with context.clock.part("publish"):
            self._policies.publish(step - 1, taken)
        with context.clock.part("post"):
            if self._begun < step:
                self._rollout.begin(step)
                self._begun = step
            self._policies.answer_kept_requests()
        return None

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

    def _step(self, step: int, played: Played) -> Played | None:
        """Train on a step's episodes, begin the next step, and record this one while that is played."""
        context, spec = self._context, self._context.spec
        self._refuse_bad_episodes(step, played)
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
        alone = context.in_lockstep and self._evaluations.is_due(step)
        following = None if last or alone else self._begin(step + 1, taken)
        if last or alone:
            self._policies.publish(step, taken)
        self._wind_up(step, played, learned, sha256_of(taken))
        if alone and not last:
            self._finish_evaluations()
            following = None if self._evaluations.stop_reason else self._begin(step + 1, taken)
        return following

    def _learned(self, step: int, played: Played) -> Learned:
        """Train on a step's episodes, with the settings of that step."""
        return self._strategy.learn(replace(self._context, spec=self._played_at(step)), step, played)

    def _played_at(self, step: int) -> PlayedSpec:
        played = self._settings_at(step).played
        assert played, "a job keeps its kind"
        return played

    def _wind_up(self, step: int, played: Played, learned: Learned, sha256: dict[str, str]) -> None:
        """Record a step, and save a checkpoint if one is due."""
        context, spec = self._context, self._context.spec
        context.clock.add("certificate", context.captured.seconds - self._captured_seconds)
        self._captured_seconds = context.captured.seconds
        seconds = context.clock.lap()
        with context.clock.part("record"):
            self._record(step, played, learned, sha256, seconds)
        self._done_step = step
        self._take_notes(step, played)
        self._policies.step_finished()
        self._last_played = played
        if step < spec.steps:
            self._look_at_budget()
        if self._is_saved(step) and step != spec.steps:
            with context.clock.part("checkpoint"):
                self._save_what_is_done()
            self._evaluations.begin(step)
        self._evaluations.collect()

    def _take_up_notes(self) -> None:
        """Restore the checkpoint's state of opponents, algorithms and the collapse guard."""
        notes = self._policies.notes
        for name, part in self._noting.items():
            state = notes.get(name)
            if isinstance(state, dict):
                part.restore(state)
        memory = notes.get(_MEMORY)
        self._context.memory.update(memory if isinstance(memory, dict) else {})
        self._keep_versions(free=True)

    def _take_notes(self, step: int, played: Played) -> None:
        """Record the step's games, for later steps and for this step's checkpoint."""
        context, spec = self._context, self._context.spec
        if spec.plays_game:
            record(context.files, step, played, keep=spec.keep_episodes)
        if spec.leagues:
            self._league.add(step, played)
        self._strategy.remember(context, self._played_at(step).updated_at(step), played)
        if self._watch is not None:
            warnings = self._watch.look(
                step,
                played,
                is_saved=self._is_saved(step),
                come_back=lambda version: command_from(spec, context.job_id, version),
            )
            context.store.append_events(context.lease, [*warnings])
        memory = {_MEMORY: dict(context.memory)} if context.memory else {}
        self._policies.note({**memory, **{name: part.state() for name, part in self._noting.items()}})
        self._keep_versions(free=False)

    @property
    def _noting(self) -> Mapping[str, _Noting]:
        """The state saved with the checkpoints, by name; only what the job uses."""
        parts: dict[str, _Noting] = {}
        if self._context.spec.leagues:
            parts["league"] = self._league
        if self._watch is not None:
            parts["guard"] = self._watch
        return parts

    def _save(self, step: int) -> None:
        super()._save(step)
        # Only now: a job that resumes from an earlier checkpoint still needs what that one names.
        self._keep_versions(free=True)

    def _keep_versions(self, *, free: bool) -> None:
        """Keep the versions used as opponents, and the last good one; `free` those kept until now."""
        wanted: dict[str, set[int]] = {}
        if self._context.spec.leagues:
            wanted["league"] = self._league.kept(self._done_step)
        if self._watch is not None:
            # The newest is kept anyway, and then counts as one of the newest, not in addition.
            wanted["guard"] = {self._watch.good_step} - {self._done_step}
        for why, steps in wanted.items():
            kept = steps if free else steps | self._kept.get(why, set())
            self._policies.keep_steps(kept, why=why)
            self._kept[why] = kept

    def _is_saved(self, step: int) -> bool:
        """Whether a step's version gets a checkpoint."""
        spec = self._context.spec
        due = step % spec.checkpoint_every == 0 or step == spec.steps
        return due or self._league.is_snapshot(step) or self._evaluations.is_due(step)

    def _refuse_bad_episodes(self, step: int, played: Played) -> None:
        context, spec = self._context, self._context.spec
        refuse_large_rewards(played)
        warnings = failure_warnings(played, step)
        if not warnings:
            return
        context.store.append_events(context.lease, list(warnings))
        if error := too_many_failures(spec, played, step, warnings):
            raise error

    def _record(
        self, step: int, played: Played, learned: Learned, sha256: dict[str, str], seconds: StepSeconds
    ) -> None:
        """Record the step; only then are results that its version sampled acknowledged."""
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
        )
        metrics = {
            **learned.metrics,
            **completion_metrics(played),
            **counted.seat_metrics,
            **counted.environment_metrics,
            **per_environment(spec, played),
            **({} if self._watch is None else guard_metrics(spec, played)),
            **(staleness_metrics(step, played) if spec.versions_ahead else {}),
            **seconds.parts,
            **speed_metrics(event),
            "retried_episodes": float(counted.retried_episodes),
        }
        event = event.model_copy(update={"metrics": within_limit(metrics)})
        context.store.record_step(
            context.lease, event, sha256, facts=self._facts(step, played, learned.metrics)
        )
        context.boards.step_recorded(context.job_id, step)
        news = self._news_of_waste(event, played)
        context.store.append_events(
            context.lease, [*spike_warnings(event), *news, *episodes_to_read(played, step)]
        )

    def _news_of_waste(self, event: StepEvent, played: Played) -> list[WarningEvent]:
        """Return new warnings about why this step taught little."""
        found = self._strategy.waste(self._context.spec, event, played)
        silence = nothing_to_compare(event, played)
        if silence is not None:  # It says the same as equal rewards would.
            found = [silence, *(warning for warning in found if warning.name != "equal_rewards")]
        news = [warning for warning in found if warning.name not in self._wasteful]
        self._wasteful = {warning.name for warning in found}
        return news

    def _save_episodes(self, step: int, results: Sequence[EpisodeResult]) -> None:
        context = self._context
        captured = [context.captured.of(result) for result in results]
        context.store.save_episodes(context.lease, step, results, captured=captured)

    def _facts(self, step: int, played: Played, metrics: Mapping[str, float]) -> list[Fact]:
        """Return a step's facts for the run's certificate."""
        context = self._context
        with context.clock.work("certificate"):
            stayed = self._strategy.kept(context.spec, played)
            counted, facts = context.notes.step(
                context.spec,
                step,
                context.lease.attempt,
                played,
                stored=context.store.stored_episodes(context.job_id, step),
                issued=context.boards.issued(context.job_id, step),
                learned_from=[request.episode_id for request, _ in stayed],
                learning_rates=metric_by_policy(metrics, "learning_rate"),
            )
            facts += self._policies.take_facts()
        if counted.matched_tokens < counted.trained_tokens:
            other = counted.trained_tokens - counted.matched_tokens
            warning = WarningEvent(
                name="tokens_not_sampled",
                message=f"{other} of the {counted.trained_tokens} tokens that step {step} learned from are "
                "not those that the engine returned to their episodes; the run's certificate says which",
                step=step,
                count=other,
            )
            context.store.append_event(context.lease, warning)
        return facts

    def _compare_last_version(self, prompts: Mapping[str, Sequence[Prompt]]) -> None:
        """Compare learner and engine on the last version, which plays no episodes."""
        context = self._context
        self._policies.probed_parity(
            self._done_step,
            prompts,
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
        context.store.append_event(
            context.lease,
            WarningEvent(
                name="replay_differs",
                message=f"repeating step {step} gave different weights than the first time (another "
                f"machine or thread count?); {dropped} stored episodes of later steps were dropped and are "
                f"played again",
                step=step,
            ),
        )
        return True


def _prompts(played: Played, context: JobContext[PlayedSpec]) -> dict[str, list[Prompt]]:
    """Return the prompts of the first turns in a step's episodes, by agent."""
    return {
        agent: [
            prompt_of(segment.token_ids, segment.loss_mask, segment.images)
            for seat in trained_seats(played, policy_of(context.job_id, agent))
            for segment in seat.trajectory.segments
            if any(segment.loss_mask)
        ]
        for agent in context.policies
    }
