"""Evaluation during training: held-out episodes of a step's version, played while the job trains.

They have their own board, from which workers take episodes when there are none to train on. The version has a
checkpoint before they begin, so that it can be sampled however far training has advanced. An evaluation
counts once it is in the job's log; one interrupted by a kill is played again completely.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from backend.episodes.episode_board import EpisodeBoard
from backend.episodes.job_board import JobBoard
from backend.episodes.played import Played
from backend.jobs.evaluation_episodes import EVALUATED, EvaluationEpisodes
from backend.jobs.job_context import JobContext
from backend.jobs.step_report import environment_metrics
from backend.policies.trained_policy import TrainedPolicy
from tinkergym.evaluation.statistics import clustered_interval, finite_ends, game_bounds
from tinkergym.schema.evaluate_every import EvaluateEvery
from tinkergym.schema.events import EvaluationEvent, WarningEvent
from tinkergym.schema.ids import JobRef
from tinkergym.schema.jobs.evaluated_spec import EvaluatedSpec
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.trajectory.trajectory import Trajectory

_ALL_STEPS = 10**10
"""Evaluations never invalidate each other."""
_LOOK_SECONDS = 0.5
_LOST = "evaluation_lost"
"""The warning about an evaluation that cannot be repeated."""
_OVERLAPS = "evaluation_overlaps"
_DRAWN = "evaluation_draws_tasks"
"""The warning about tasks that are both trained on and evaluated."""


class StepEvaluations:
    """The evaluations of one job, from the first version to the last."""

    def __init__(self, context: JobContext[EvaluatedSpec]) -> None:
        self._context = context
        self._wanted = context.spec.evaluations
        self._played: PlayedSpec | None = context.spec.played
        """How the job's own episodes are played; these are played the same way."""
        self._by_client = context.spec.played_by == "client" and self._played is None
        board = JobRef(context.job_id, "evaluate")
        self._board = str(board)
        self._episodes = EvaluationEpisodes(context, board)
        self._pending: dict[int, list[int]] = {}
        """By step, its running evaluations, in order."""
        self._recorded: dict[str, list[EvaluationEvent]] = {}
        """By name, in order of their steps."""
        self._last = context.spec.steps
        """The job's last step, whose version is always evaluated."""
        self.stop_reason = ""
        """Why the job should end now, by its evaluations; empty if it should not. The first reason stays:
        later evaluations of versions that were already trained cannot take it back."""

    @property
    def _first(self) -> TrainedPolicy:
        """One of the job's policies: all have versions of the same steps."""
        return next(iter(self._context.policies.values()))

    def open(self) -> None:
        """Restore the state of an earlier attempt."""
        context, played = self._context, self._played
        if not self._wanted:
            return
        for event in context.store.evaluations(context.job_id):
            self._take_in(event)
        context.boards.open(
            JobBoard(
                name=self._board,
                board=EpisodeBoard(lease_seconds=context.lease_seconds, ahead=_ALL_STEPS),
                # Nothing is stored: after a kill an evaluation is played again, from the checkpoint that is
                # kept for it.
                save=lambda step, results: None,
                for_server_workers=played.rollout == "server" if played else not self._by_client,
                limits=context.limits,
                other_limits=context.other_limits,
                tenant=context.lease.tenant_id,
                environment=context.spec.environment_of(self._wanted[0]).id,
                background=True,
            )
        )
        context.boards.step_recorded(self._board, 0)
        self._keep_checkpoints()
        self._warn_of_overlap()
        self._warn_of_draws()

    def _warn_of_overlap(self) -> None:
        """Say once which evaluations play tasks that the job also trains on."""
        told = [
            f"{known.trained_on} of the {known.tasks} tasks of {name}"
            for name, known in self._context.spec.evaluated_tasks.items()
            if known.trained_on
        ]
        if told:
            self._warn_once(
                _OVERLAPS,
                f"{', '.join(told)} are also training tasks, so its returns, and the version that is "
                f"@best by them, are not held out: name another split= in EvaluateEvery",
            )

    def _warn_of_draws(self) -> None:
        """Say once which evaluations name a split and cannot play each of its tasks once."""
        spec = self._context.spec
        names = [spec.name_of(one) for one in self._wanted]
        told = [
            name
            for one, name in zip(self._wanted, names, strict=True)
            if name not in spec.evaluated_tasks and one.draws_from_split(0)
        ]
        if told:
            self._warn_once(
                _DRAWN,
                f"{', '.join(told)} names a split, but its tasks cannot be counted (it draws from several "
                "sources, from none, or on an environment server): episodes draw tasks by seed, so some may "
                "be played twice and some never",
            )

    def _warn_once(self, name: str, message: str) -> None:
        context = self._context
        if 0 not in context.store.warned_steps(context.job_id, name):
            context.store.append_event(context.lease, WarningEvent(name=name, message=message, step=0))

    def end_at(self, step: int) -> None:
        """Treat a step as the job's last, after an early stop."""
        self._last = step

    def close(self) -> None:
        """Discard the running evaluations."""
        self._context.boards.close(self._board)

    def is_due(self, step: int) -> bool:
        """Whether an evaluation of a step's version must still be started."""
        return bool(self._due(step)) and step not in self._pending

    def begin(self, step: int) -> None:
        """Put the episodes of a step's version on the board; it is the base, or has a checkpoint.

        Evaluations recorded by an earlier attempt are not played again.
        """
        due = self._due(step)
        if not due or step in self._pending:
            return
        # Before a worker can lease an episode: the version must not be tidied away while it is needed.
        self._pending[step] = due
        self._keep_checkpoints()
        requests = [request for number in due for request in self._episodes.requests(step, number)]
        self._context.boards.post(self._board, step, requests)

    def begin_left_over(self, done_step: int) -> None:
        """Start evaluations that were due by a step but are missing from the log after a kill."""
        context = self._context
        if not self._wanted:
            return
        # Version 0 is the policy before training, which needs no checkpoint.
        kept = {0, *(view.step for view in self._first.checkpoints())}
        told = context.store.warned_steps(context.job_id, _LOST)
        for step in range(done_step + 1):
            if self._due(step) and step in kept:
                self.begin(step)
            elif self._due(step) and step not in told:
                names = ", ".join(context.spec.name_of(self._wanted[number]) for number in self._due(step))
                warning = WarningEvent(
                    name=_LOST,
                    message=f"the evaluation of version {step} ({names}) was interrupted, and the version "
                    f"is no longer stored",
                    step=step,
                )
                context.store.append_event(context.lease, warning)

    def collect(self, *, wait_seconds: float = 0.0) -> bool:
        """Record complete evaluations, in order of their steps; returns whether all are complete.

        Args:
            wait_seconds: Time to wait for the first incomplete one.

        Raises:
            TooManyFailedEpisodesError: Too many workers died in one.
        """
        context = self._context
        for step in sorted(self._pending):
            if context.boards.wait(self._board, step, wait_seconds) != "done":
                return False
            played = context.boards.results(self._board, step)
            for number in self._pending.pop(step):
                of_it = [(request, result) for request, result in played if request.group == number]
                self._record(step, self._wanted[number], of_it)
            context.boards.forget_step(self._board, step)
            self._keep_checkpoints()
        return True

    def client_silence(self) -> float:
        """Return for how long no client that plays the evaluations was heard from; 0 if none needs to."""
        return self._context.boards.silent_seconds(self._board) if self._by_client and self._pending else 0.0

    def _record(self, step: int, wanted: EvaluateEvery, played: Played) -> None:
        context = self._context
        agent = context.spec.agent_of(wanted)
        # Of a game those of the policy that is evaluated, wherever it sat.
        trajectories = [
            next(one for one in result.trajectories if request.seats[one.agent].player == EVALUATED)
            for request, result in sorted(played, key=lambda one: one[0].index)
        ]
        sets = _whole_sets(trajectories, size=len(self._episodes.seats_of(wanted)))
        counted = [one for some in sets for one in some]
        returns = [one.episode_return for one in counted]
        low, high = _interval(_by_task(sets), game=bool(context.spec.seats))
        name = context.spec.name_of(wanted)
        known = context.spec.evaluated_tasks.get(name)
        before = self._recorded.get(name, [])
        event = EvaluationEvent(
            name=name,
            agent=agent,
            step=step,
            policy_version=step,
            episodes=len(trajectories),
            failed_episodes=sum(not one.completed for one in trajectories),
            sampled_tokens=sum(one.sampled_tokens for one in trajectories),
            mean=math.fsum(returns) / len(returns) if returns else None,
            low=low,
            high=high,
            stop_reasons=dict(Counter(one.stop_reason.value for one in trajectories).most_common()),
            metrics=environment_metrics(counted),
            tasks=known.tasks if known else None,
            overlap=known.overlap if known else None,
            drawn=wanted.draws_from_split(known.tasks if known else 0),
        )
        decided_by = context.spec.best_decided_by(agent)
        if decided_by is not None and decided_by[0] == name and _is_best(event, before, decided_by[1]):
            event = event.model_copy(update={"best": True})
        context.store.append_event(context.lease, event)
        self._take_in(event)

    def _take_in(self, event: EvaluationEvent) -> None:
        """Remember a recorded evaluation, and the first reason to stop."""
        of_it = self._recorded.setdefault(event.name, [])
        of_it.append(event)
        wanted = next((one for one in self._wanted if self._context.spec.name_of(one) == event.name), None)
        if wanted is not None and not self.stop_reason:
            self.stop_reason = _stop_reason(wanted, of_it)

    def _due(self, step: int) -> list[int]:
        spec = self._context.spec
        return [
            number
            for number, wanted in enumerate(self._wanted)
            if wanted.is_due(step, last=self._last)
            and all(event.step != step for event in self._recorded.get(spec.name_of(wanted), ()))
        ]

    def _keep_checkpoints(self) -> None:
        """Have the best version kept, and those that are being played."""
        for agent, policy in self._context.policies.items():
            best = [
                event.step
                for events in self._recorded.values()
                for event in events
                if event.best and event.agent == agent
            ]
            policy.keep_steps({*self._pending, *best[-1:]})


def _whole_sets(trajectories: Sequence[Trajectory], *, size: int) -> list[list[Trajectory]]:
    """Return the mirrored sets of games, one game per seat, without failures.

    The games of a set share their seed. A single one would give its seat more weight than the others.
    """
    sets = [list(trajectories[start : start + size]) for start in range(0, len(trajectories), size)]
    return [some for some in sets if all(one.completed for one in some)]


def _by_task(sets: Sequence[Sequence[Trajectory]]) -> list[list[Trajectory]]:
    """Return the sets with all episodes of a task together: they are correlated."""
    by_task: dict[object, list[Trajectory]] = {}
    for number, some in enumerate(sets):
        task = some[0].task_index
        by_task.setdefault(("drawn", number) if task is None else task, []).extend(some)
    return list(by_task.values())


def _interval(sets: Sequence[Sequence[Trajectory]], *, game: bool) -> list[float | None]:
    """Return the ends of the mean return's 95 % interval; None for one that is not known."""
    if not sets:
        return [None, None]
    clusters = [[one.episode_return for one in some] for some in sets]
    returns = [value for some in clusters for value in some]
    return finite_ends(*clustered_interval(clusters, bounds=game_bounds(returns) if game else None))


def _is_best(newest: EvaluationEvent, before: Sequence[EvaluationEvent], metric: str) -> bool:
    """Whether an evaluation is better than all before, by its mean return or a metric."""

    def value(event: EvaluationEvent) -> float | None:
        return event.metrics.get(metric) if metric else event.mean

    own = value(newest)
    return own is not None and all((other := value(event)) is None or own > other for event in before)


def _stop_reason(wanted: EvaluateEvery, events: Sequence[EvaluationEvent]) -> str:
    known = [event for event in events if event.mean is not None]
    if not known:
        return ""
    newest = known[-1]
    if wanted.target is not None and newest.mean is not None and newest.mean >= wanted.target:
        return f"version {newest.policy_version} reached {newest.mean:.4g} in {newest.name}, the target"
    # Of equals the first: patience counts from there.
    best = max(range(len(known)), key=lambda number: (known[number].mean or 0.0, -number))
    if wanted.patience is not None and len(known) - 1 - best >= wanted.patience:
        return (
            f"{wanted.patience} evaluations in a row were no better than that of version "
            f"{known[best].policy_version} in {newest.name}"
        )
    return ""
