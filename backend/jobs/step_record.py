"""What is written down about a step: its event with all metrics, its facts, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend.episodes.played import Played
from backend.episodes.staleness import staleness_metrics
from backend.jobs.all_policies import AllPolicies
from backend.jobs.collapse_watch import guard_metrics
from backend.jobs.completions import completion_metrics, speed_metrics
from backend.jobs.job_context import JobContext
from backend.jobs.learn_phase import Learned
from backend.jobs.step_clock import StepSeconds
from backend.jobs.step_report import (
    episodes_to_read,
    failure_warnings,
    per_environment,
    spike_warnings,
    statistics,
    too_many_failures,
    within_limit,
)
from backend.jobs.strategy import Strategy
from backend.jobs.turn_rewards import refuse_large_rewards
from backend.jobs.zero_variance import nothing_to_compare
from backend.store.stored_facts import Fact
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import StepEvent, WarningEvent, metric_by_policy
from tinkergym.schema.jobs.played_spec import PlayedSpec


class StepRecord:
    """Writes to the store for one job.

    A step is recorded once its weights are known, and before any result that its version sampled is
    acknowledged: otherwise the weights that sampled it could be unknown later. A warning about waste is only
    written for the first of several such steps.
    """

    def __init__(self, context: JobContext[PlayedSpec], policies: AllPolicies, strategy: Strategy) -> None:
        self._context, self._policies, self._strategy = context, policies, strategy
        self._wasteful: set[str] = set()
        """The warnings about the newest step's waste."""
        self._captured_seconds = 0.0
        """Time of `CapturedTokens` at the end of the last step."""

    def refuse_bad_episodes(self, step: int, played: Played) -> None:
        """Warn about failed episodes.

        Raises:
            TinkerGymError: There are too many, or rewards are not usable.
        """
        context = self._context
        refuse_large_rewards(played)
        warnings = failure_warnings(played, step)
        if not warnings:
            return
        context.store.append_events(context.lease, list(warnings))
        if error := too_many_failures(context.spec, played, step, warnings):
            raise error

    def save_episodes(self, step: int, results: Sequence[EpisodeResult]) -> None:
        """Store results with the digests of their completions."""
        context = self._context
        captured = [context.captured.of(result) for result in results]
        context.store.save_episodes(context.lease, step, results, captured=captured)

    def write(self, step: int, played: Played, learned: Learned, sha256: dict[str, str]) -> None:
        """Record a step; only then are results that its version sampled acknowledged."""
        context = self._context
        context.clock.add("certificate", context.captured.seconds - self._captured_seconds)
        self._captured_seconds = context.captured.seconds
        # The event has the step's times, so the time of writing it counts for the next step.
        seconds = context.clock.lap()
        with context.clock.part("record"):
            event = self._event(step, played, learned, seconds)
            facts = self._facts(step, played, learned.metrics)
            context.store.record_step(context.lease, event, sha256, facts=facts)
            context.boards.step_recorded(context.job_id, step)
            news = self._news_of_waste(event, played)
            context.store.append_events(
                context.lease, [*spike_warnings(event), *news, *episodes_to_read(played, step)]
            )

    def warn_of_lost_episodes(self) -> None:
        """Warn at the end of the job if many of its episodes failed."""
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

    def _event(self, step: int, played: Played, learned: Learned, seconds: StepSeconds) -> StepEvent:
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
            **({} if spec.guard is None else guard_metrics(spec, played)),
            **(staleness_metrics(step, played) if spec.versions_ahead else {}),
            **seconds.parts,
            **speed_metrics(event),
            "retried_episodes": float(counted.retried_episodes),
        }
        return event.model_copy(update={"metrics": within_limit(metrics)})

    def _news_of_waste(self, event: StepEvent, played: Played) -> list[WarningEvent]:
        """Return new warnings about why this step taught little."""
        found = self._strategy.waste(self._context.spec, event, played)
        silence = nothing_to_compare(event, played)
        if silence is not None:  # It says the same as equal rewards would.
            found = [silence, *(warning for warning in found if warning.name != "equal_rewards")]
        news = [warning for warning in found if warning.name not in self._wasteful]
        self._wasteful = {warning.name for warning in found}
        return news

    def _facts(self, step: int, played: Played, metrics: Mapping[str, float]) -> list[Fact]:
        """Return a step's facts for the run's certificate."""
        context = self._context
        with context.clock.work("certificate"):
            stayed = self._strategy.kept(context.spec, played)
            counted, facts = context.evidence.step(
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
