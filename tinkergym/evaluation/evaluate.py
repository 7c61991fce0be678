"""Evaluation: a policy plays held-out episodes, and the results are summarized in numbers.

Works with anything that samples tokens: the service's policy, an engine in this process, or a scripted
sampler.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Unpack

import gymnasium as gym
import numpy as np

from tinkergym.agent.episode_plan import EpisodePlan, PlayedPolicy
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.sampler import Sampler
from tinkergym.display.html import card, histogram
from tinkergym.display.pandas_tables import frame, with_metrics
from tinkergym.display.progress import episodes_shown
from tinkergym.errors import InvalidRequestError, TinkerGymError
from tinkergym.evaluation.chosen_tasks import Inspected, inspect_environment
from tinkergym.evaluation.statistics import (
    clustered_interval,
    finite_ends,
    game_bounds,
    interval_text,
    share_interval,
)
from tinkergym.registration.arguments import built
from tinkergym.registration.environments import make_environment
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.rollout.local_environment import describe_for_one
from tinkergym.rollout.play_list import play
from tinkergym.rollout.table_tools import with_seat_tools
from tinkergym.schema.decoding import Decoding, DecodingOptions
from tinkergym.schema.evaluate_every import tasks_played
from tinkergym.schema.evaluation import EvaluationEpisode, EvaluationLine
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.seat_tools import SeatTools
from tinkergym.trajectory.trajectory import MEAN, Trajectory

_USUAL_EPISODES = 200
_SAMPLING = 2
"""Last word of the entropy for evaluation's sampling seeds; different in training."""

EnvironmentSource = str | Callable[..., gym.Env[Any, Any]]


class EvaluablePolicy(PlayedPolicy, Protocol):
    """What evaluation needs from a policy: its settings, and how to sample from it."""

    tools: SeatTools | None
    """Tools that it calls before it answers."""

    @property
    def renderer(self) -> Renderer:
        """Turns messages into the model's token ids."""
        ...

    def sampler(self) -> Sampler:
        """Return a new sampler, which the caller closes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Evaluation:
    """Episodes of one policy, in the order of their seeds.

    Returns are undiscounted sums of rewards. All figures are of the completed episodes; `evaluate` raises if
    there are none.
    """

    trajectories: tuple[Trajectory, ...]
    is_game: bool = False
    """Whether it is known to be a game against an opponent, so that a return of 0 is a draw."""
    tasks: int | None = None
    """How many tasks there are to play; None in an environment without tasks, or if that is not known."""
    overlap: float | None = None
    """The share of them that the policy is also trained on, by content; None if that is not known."""
    drawn: bool = False
    """Whether a split was named whose tasks could not be counted here, such as one that the service or an
    environment server plays: episodes drew them by seed, so some may be played twice and some never."""

    @property
    def completed(self) -> list[Trajectory]:
        """The episodes whose return is valid; the others are `failed`."""
        return [trajectory for trajectory in self.trajectories if trajectory.completed]

    @property
    def failed(self) -> list[Trajectory]:
        """Episodes that a broken environment or sampler ended; their `error` has the cause."""
        return [trajectory for trajectory in self.trajectories if not trajectory.completed]

    @property
    def mean(self) -> float:
        """The mean return."""
        returns = [trajectory.episode_return for trajectory in self.completed]
        return math.fsum(returns) / len(returns)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the mean return; infinite if it is unknown.

        Episodes of one task are taken together; see `tinkergym.evaluation.statistics.clustered_interval`.
        """
        clusters: dict[object, list[float]] = {}
        for number, one in enumerate(self.completed):
            key = ("drawn", number) if one.task_index is None else one.task_index
            clusters.setdefault(key, []).append(one.episode_return)
        returns = [value for some in clusters.values() for value in some]
        return clustered_interval(
            list(clusters.values()), bounds=game_bounds(returns) if self.is_game else None
        )

    @property
    def low(self) -> float:
        """The interval's lower end."""
        return self.interval[0]

    @property
    def high(self) -> float:
        """The interval's upper end."""
        return self.interval[1]

    @property
    def wins(self) -> int:
        """Episodes with a positive return."""
        return sum(trajectory.episode_return > 0 for trajectory in self.completed)

    @property
    def draws(self) -> int:
        """Episodes with a return of 0."""
        return sum(trajectory.episode_return == 0 for trajectory in self.completed)

    @property
    def losses(self) -> int:
        """Episodes with a negative return."""
        return sum(trajectory.episode_return < 0 for trajectory in self.completed)

    @property
    def has_draws(self) -> bool:
        """Whether to count draws: a sum that is wrong is not a draw."""
        return self.is_game or self.losses > 0

    @property
    def win_rate(self) -> float:
        """Wins among the completed episodes."""
        return self.wins / len(self.completed)

    @property
    def win_rate_interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the win rate (Wilson)."""
        return share_interval(self.wins, len(self.completed))

    @property
    def stop_reasons(self) -> dict[str, int]:
        """Number of episodes by stop reason, including failures."""
        return dict(Counter(trajectory.stop_reason.value for trajectory in self.trajectories).most_common())

    @property
    def metrics(self) -> dict[str, float]:
        """The environment's own metrics: the last value in each episode, averaged over those that have it.

        Of a name that begins with `mean/`, the mean over each episode's turns instead of the last value.
        """
        values: dict[str, list[float]] = {}
        for trajectory in self.completed:
            for name, value in _last_metrics(trajectory).items():
                values.setdefault(name, []).append(value)
        return {name: math.fsum(found) / len(found) for name, found in sorted(values.items())}

    def transcript(self, index: int = 0) -> str:
        """Return one episode as readable text."""
        trajectory = self.trajectories[index]
        names = {"user": "environment", "assistant": "policy"}
        lines = [f"{names[role]}:\n{_indented(text)}" for role, text in trajectory.transcript]
        end = f"return {trajectory.episode_return:g} ({trajectory.stop_reason.value}, seed {trajectory.seed})"
        return "\n".join([*lines, end, *([trajectory.error] if trajectory.error else [])])

    def summary(self) -> dict[str, Any]:
        """Return all figures as one JSON object."""
        return {
            "episodes": len(self.trajectories),
            "failed": len(self.failed),
            "mean_return": self.mean,
            "interval_95": finite_ends(*self.interval),
            "wins": self.wins,
            "draws": self.draws,
            "losses": self.losses,
            "win_rate": self.win_rate,
            "win_rate_interval_95": list(self.win_rate_interval),
            "stop_reasons": self.stop_reasons,
            "metrics": self.metrics,
            "tasks": self.tasks,
            "overlap": self.overlap,
        }

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each episode; its metrics are columns.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return frame(
            with_metrics(
                {
                    "seed": one.seed,
                    "task_index": one.task_index,
                    "return": one.episode_return,
                    "turns": len(one.turns),
                    "sampled_tokens": one.sampled_tokens,
                    "stop_reason": one.stop_reason.value,
                    "completed": one.completed,
                    "error": one.error,
                },
                _last_metrics(one),
            )
            for one in self.trajectories
        )

    def __repr__(self) -> str:
        return f"<Evaluation {self}>"

    def _repr_html_(self) -> str:
        """Show the figures in a notebook, with a histogram of returns and the first episode to expand."""
        rows: dict[str, object] = {"episodes": len(self.trajectories)}
        if self.completed:
            rows["mean return"] = f"{self.mean:.3f} {interval_text(*self.interval, '.3f')}"
            if self.has_draws:
                rows["wins, draws, losses"] = f"{self.wins}, {self.draws}, {self.losses}"
        if self.failed:
            rows["failed"] = len(self.failed)
        if self.overlap is not None:
            rows["tasks that are trained on"] = f"{self.overlap:.0%} of {self.tasks}"
        rows["ended by"] = ", ".join(f"{name} {count}" for name, count in self.stop_reasons.items())
        rows |= {name: f"{value:.4g}" for name, value in self.metrics.items()}
        picture = histogram([one.episode_return for one in self.completed], "returns")
        first = self.transcript(0) if self.trajectories else ""
        return card("Evaluation", rows, picture=picture, folded=first)

    def __str__(self) -> str:
        if not self.completed:
            return f"none of {len(self.trajectories)} episodes completed"
        interval = interval_text(*self.interval, ".2f")
        failed = f", {len(self.failed)} failed" if self.failed else ""
        ended = (
            f"won {self.wins}, drew {self.draws}, lost {self.losses}"
            if self.has_draws
            else f"above 0 in {self.wins}"
        )
        trained = f", {self.overlap:.0%} of its tasks are trained on" if self.overlap else ""
        trained += ", tasks drawn by seed" if self.drawn else ""
        return f"return {self.mean:.2f} {interval}, {ended} of {len(self.trajectories)}{failed}{trained}"


def evaluate(
    policy: EvaluablePolicy,
    environment: EnvironmentSource,
    *,
    episodes: int | None = None,
    samples: int = 1,
    seed: int = 0,
    split: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    max_concurrent: int = 64,
    on_episode: Callable[[Trajectory], None] | None = None,
    progress: bool | None = None,
    **decoding: Unpack[DecodingOptions],
) -> Evaluation:
    """Let a policy play episodes and return the results.

    Args:
        policy: The policy.
        environment: A registered id, an environment class, or a function that makes one. An id that is not
            known here is played by the policy's service.
        episodes: How many. In an environment with tasks, as many different tasks as that takes. None plays
            every task of a split once, or of an environment with at most 200 tasks, and else 200 episodes.
        samples: Episodes of each task that is played.
        seed: The episodes have the seeds `seed`, `seed + 1`, ...
        split: Short for `env_kwargs={"split": ...}`.
        env_kwargs: Arguments of the environment.
        max_concurrent: Episodes played at once.
        on_episode: Called with each as it ends.
        progress: Show on stderr how many have ended; None does so on a terminal if there is no `on_episode`.
        **decoding: Fields of `Decoding` in place of the policy's: temperature, which is 0 if left out, top_p,
            top_k, max_turn_tokens, structured, stop.

    Raises:
        InvalidRequestError: An argument is out of range; its name is in `field`.
        UnknownEnvironmentError: The id is not registered, here or in the service.
        InvalidEnvironmentError: It cannot be created.
        TinkerGymError: No episode could be completed. The message has the first error.
    """
    _refuse_below_one(episodes=episodes, samples=samples)
    kwargs = dict(env_kwargs or {}) | ({} if split is None else {"split": split})
    reference, make_env = resolved(environment, kwargs)
    options: DecodingOptions = {"temperature": 0.0, **decoding}
    chosen = policy.decoding.with_options(**options)
    inspected = Inspected()
    if make_env is not None:
        inspected = inspect_environment(make_env, reference, getattr(policy, "trained_in", ()), environment)
    is_game, known = inspected.is_game, inspected.overlap
    if samples > 1 and known is None:
        raise InvalidRequestError("the environment has no tasks", hint="leave it out", field="samples")
    tasks = tasks_played(
        known.tasks if known else 0,
        episodes=episodes,
        samples=samples,
        names_split="split" in kwargs,
        usual=_USUAL_EPISODES,
        seed=seed,
    )
    run = f"evaluate-{uuid.uuid4().hex[:12]}"
    episodes_wanted = {
        f"{run}-{number}": PolicyEpisode(
            seed=number, sampling_seed=sampling_seed(number, _SAMPLING), task_index=task
        )
        for number, task in enumerate(tasks, start=seed)
    }
    ended: dict[str, Trajectory] = {}
    progress = False if on_episode is not None and progress is None else progress
    lines = played(policy, reference, make_env, episodes_wanted, chosen, max_concurrent=max_concurrent)
    with episodes_shown(len(tasks), progress=progress) as one_more:
        for line in lines:
            assert line.trajectory is not None
            ended[line.episode_id] = line.trajectory
            is_game = is_game or line.is_game
            one_more()
            if on_episode is not None:
                on_episode(line.trajectory)
    evaluation = Evaluation(
        trajectories=tuple(ended[episode_id] for episode_id in episodes_wanted),
        is_game=is_game,
        tasks=known.tasks if known else None,
        overlap=None if known is None or known.trained_on is None else known.trained_on / known.tasks,
        drawn=known is None and "split" in kwargs,
    )
    _refuse_none_completed(evaluation)
    return evaluation


def _refuse_below_one(**counts: int | None) -> None:
    for field, count in counts.items():
        if count is not None and count < 1:
            raise InvalidRequestError("there must be at least one episode", field=field)


def _refuse_none_completed(evaluation: Evaluation) -> None:
    if evaluation.completed:
        return
    first = evaluation.failed[0]
    raise TinkerGymError(
        f"all {len(evaluation.trajectories)} episodes failed; the first: {first.stop_reason.value}: "
        f"{first.error}",
        hint="fix what the error names and evaluate again",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEpisode:
    """One episode for a policy to play."""

    seed: int
    sampling_seed: int
    task_index: int | None = None


def played(
    policy: EvaluablePolicy,
    reference: EnvironmentRef,
    make_env: MakeEnv | None,
    episodes: Mapping[str, PolicyEpisode],
    decoding: Decoding,
    *,
    max_concurrent: int,
) -> Iterator[EvaluationLine]:
    """Let a policy play episodes, here or, if `make_env` is None, in its service; yields each as it ends."""
    if make_env is None:
        return play_there(policy, reference, episodes, decoding)
    here = play_policy(policy, reference, make_env, episodes, decoding, max_concurrent=max_concurrent)
    return (EvaluationLine.model_construct(episode_id=episode_id, trajectory=one) for episode_id, one in here)


def play_there(
    policy: EvaluablePolicy,
    reference: EnvironmentRef,
    episodes: Mapping[str, PolicyEpisode],
    decoding: Decoding,
) -> Iterator[EvaluationLine]:
    """Let the policy's service play episodes in an environment that is not known here.

    Raises:
        UnknownEnvironmentError: The policy does not belong to a service.
    """
    ask = getattr(policy, "play_there", None)
    if ask is None:
        make_environment(reference)  # This raises with close matches.
        raise AssertionError(reference.id)
    wanted = [
        EvaluationEpisode(
            episode_id=episode_id,
            seed=episode.seed,
            sampling_seed=episode.sampling_seed,
            task_index=episode.task_index,
        )
        for episode_id, episode in episodes.items()
    ]
    lines: Iterator[EvaluationLine] = ask(reference, wanted, decoding)
    return lines


def play_policy(
    policy: EvaluablePolicy,
    reference: EnvironmentRef,
    make_env: MakeEnv,
    episodes: Mapping[str, PolicyEpisode],
    decoding: Decoding,
    *,
    max_concurrent: int,
) -> Iterator[tuple[str, Trajectory]]:
    """Let a policy play many episodes concurrently; each is yielded under its id as it ends."""
    plans = [
        EpisodePlan.for_policy(
            policy,
            decoding.model_copy(update={"seed": episode.sampling_seed}),
            episode_id=episode_id,
            seed=episode.seed,
            environment=reference,
            task_index=episode.task_index,
        )
        for episode_id, episode in episodes.items()
    ]
    if policy.tools is not None:
        make_env = with_seat_tools(make_env, policy.tools)
    sampler = policy.sampler()
    try:
        for result in play(
            plans,
            sampler=sampler,
            renderer=policy.renderer,
            make_env=make_env,
            max_concurrent=max_concurrent,
        ):
            yield result.episode_id, result.trajectory
    finally:
        sampler.close()


def sampling_seed(*entropy: int) -> int:
    """Return the sampling seed for these numbers."""
    words = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return int(words[0]) >> 1  # Room for later turns.


def make_once(make_env: MakeEnv, reference: EnvironmentRef) -> bool:
    """Create the environment once, and return whether it is a game against an opponent."""
    return inspect_environment(make_env, reference).is_game


def resolved(environment: EnvironmentSource, kwargs: dict[str, Any]) -> tuple[EnvironmentRef, MakeEnv | None]:
    """Return what an environment is called, and how this process makes it; None if only a service can.

    Raises:
        InvalidRequestError: It is an environment that was made already, or none.
        UnknownEnvironmentError: It is a game for several players.
    """
    if isinstance(environment, str):
        described = describe_for_one(environment, kwargs)
        return described.ref, described.make
    if isinstance(environment, gym.Env) or not callable(environment):
        raise InvalidRequestError(
            "several episodes are played at once, each in its own environment",
            hint="pass an id, a class, or a function that creates an environment",
            field="environment",
        )
    build = environment
    name = getattr(build, "__name__", type(build).__name__)

    def make(_: EnvironmentRef) -> gym.Env[Any, Any]:
        return built(build, kwargs, field="env_kwargs")

    # The arguments may not be JSON, and they stay here; the reference is only a name.
    return EnvironmentRef(id=f"local/{name}"[:200]), make


def _last_metrics(trajectory: Trajectory) -> dict[str, float]:
    last = {name: value for turn in trajectory.turns for name, value in turn.metrics.items()}
    return last | {name: mean for name, mean in trajectory.metrics.items() if name.startswith(MEAN)}


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines()) or "  "
