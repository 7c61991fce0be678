"""Rescore stored episodes: rewards, rankings and advantages under another reward.

Only rewards that depend on the task's row and the transcript can be recomputed. An environment whose reward
depends on its own state is refused, because it would have to be played again.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tinkergym.core import SingleTurnEnv, TextEnv
from tinkergym.datasets.stored_episodes import GroupKey, StoredEpisode, StoredEpisodes
from tinkergym.display.pandas_tables import frame
from tinkergym.errors import InvalidRequestError, TinkerGymError
from tinkergym.evaluation.rescored_advantages import advantages, what_is_missing
from tinkergym.messages import observation_text
from tinkergym.rubrics.rubric import Rubric, finite
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.tasks.source import TaskSource
from tinkergym.trajectory.content_parts import content_text
from tinkergym.user_code.returned_values import settled

FloatArray = npt.NDArray[np.float64]
Score = Callable[[StoredEpisode], float]
NewReward = Rubric | type[SingleTurnEnv] | Score
"""A rubric, an environment class with another `score`, or a function from an episode to a reward."""

_KEYS, _HELD = ("api_key", "token"), "stored:"
"""Arguments for which the service shows only the name of the file with the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoredEpisode:
    """One episode under both rewards."""

    episode: StoredEpisode
    before: float
    after: float | None
    """None if the new reward could not be computed."""
    error: str = ""
    rank_before: int
    """Rank within its group, 1 for the highest; equal rewards share the best rank."""
    rank_after: int | None
    advantage_before: float | None
    """None if the advantages cannot be computed from rewards; see `Rescored.no_advantages`."""
    advantage_after: float | None
    metrics: Mapping[str, float]
    """Values of the new reward's terms."""


class Rescored(Sequence[RescoredEpisode]):
    """A report with each completed episode and a summary of the changes."""

    def __init__(self, episodes: Sequence[RescoredEpisode], origin: str, *, no_advantages: str = "") -> None:
        """Wrap the results of `rescore`."""
        self._episodes = list(episodes)
        self._origin = origin
        self.no_advantages = no_advantages
        """Why the job's algorithm does not determine advantages from rewards; empty if it does."""

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, index: Any) -> Any:
        return self._episodes[index]

    def __str__(self) -> str:
        found = self.summary
        compared = (
            f"no advantages: {self.no_advantages}"
            if self.no_advantages
            else f"advantages with changed sign: {found['advantages_turned']}; correlation of the advantages "
            f"{found['advantage_correlation']:.3f}"
        )
        return (
            f"{self._origin}: {found['episodes']} episodes, mean reward {found['mean_before']:.3f} -> "
            f"{found['mean_after']:.3f}, {found['errors']} could not be scored\n"
            f"rankings changed in {found['groups_reranked']} of {found['groups']} groups, the best episode "
            f"in {found['groups_with_another_best']}; zero-variance groups "
            f"{found['zero_variance_groups_before']} -> {found['zero_variance_groups_after']}\n"
            f"{compared}"
        )

    @property
    def summary(self) -> dict[str, float]:
        """Return a summary of the changes; without advantages if there are none."""
        scored = [one for one in self._episodes if one.after is not None]
        groups: dict[GroupKey, list[RescoredEpisode]] = defaultdict(list)
        for one in scored:
            groups[one.episode.group_key].append(one)
        before = np.asarray([one.advantage_before or 0.0 for one in scored])
        after = np.asarray([one.advantage_after or 0.0 for one in scored])
        reranked = [
            some for some in groups.values() if any(one.rank_before != one.rank_after for one in some)
        ]
        another = [some for some in groups.values() if _best(some, "before") != _best(some, "after")]
        return {
            "episodes": len(self._episodes),
            "errors": len(self._episodes) - len(scored),
            "groups": len(groups),
            "mean_before": _mean([one.before for one in scored]),
            "mean_after": _mean([one.after for one in scored if one.after is not None]),
            "groups_reranked": len(reranked),
            "groups_with_another_best": len(another),
            "zero_variance_groups_before": sum(
                len({one.before for one in some}) < 2 for some in groups.values()
            ),
            "zero_variance_groups_after": sum(
                len({one.after for one in some}) < 2 for some in groups.values()
            ),
        } | (
            {}
            if self.no_advantages
            else {
                "advantages_turned": int((before * after < 0).sum()),
                "advantage_correlation": _correlation(before, after),
            }
        )

    def to_json(self) -> str:
        """Return the summary and a row per episode as JSON."""
        return json.dumps(
            {"origin": self._origin, "summary": self.summary, "episodes": self._rows()}, indent=1
        )

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row per episode.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return frame({**one, **(one.pop("metrics") or {})} for one in self._rows())

    @property
    def episodes(self) -> StoredEpisodes:
        """The episodes with their new rewards, for `to_sft` and `to_preference`; without those not scored."""
        return StoredEpisodes(
            (_with_reward(one.episode, one.after) for one in self._episodes if one.after is not None),
            origin=f"{self._origin}, rescored",
        )

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "episode_id": one.episode.episode_id,
                "step": one.episode.step,
                "group": one.episode.group,
                "agent": one.episode.agent,
                "before": one.before,
                "after": one.after,
                "rank_before": one.rank_before,
                "rank_after": one.rank_after,
                "advantage_before": one.advantage_before,
                "advantage_after": one.advantage_after,
                "error": one.error,
                "metrics": dict(one.metrics),
            }
            for one in self._episodes
        ]


def rescore(
    spec: PlayedSpec,
    episodes: StoredEpisodes,
    reward: NewReward,
    *,
    tasks: TaskSource | None = None,
    origin: str = "episodes",
) -> Rescored:
    """Compute another reward for stored episodes.

    Args:
        spec: The job that played them; its algorithm defines advantages. If they depend on more than one
            reward per episode, as PPO's do, the report has none and says why.
        episodes: Episodes of that job. Failed ones are ignored, because they have no reward. One in which the
            agent never acted keeps its reward: it has no answer to score.
        reward: A `Rubric`, whose terms may name the facts `answer` (the last), `answers`, `messages`,
            `observation` (the first), `reward` (as it was), `metrics`, `group_answers` (the last answers of
            the episode's whole group), `place` (among those), and each field of the task's row. Or a class
            of `SingleTurnEnv` with another `score`. Or a function from a `StoredEpisode` to a number.
        tasks: Where task rows come from, for facts of a rubric; by the episode's task index.
        origin: A name for the episodes in the report.

    Raises:
        InvalidRequestError: The reward depends on state that is not stored.
    """
    completed = episodes.filter(completed=True)
    scorer = _scorer(reward, completed, tasks)
    before = [one.trajectory.episode_return for one in completed]
    scored = [_scored(scorer, one) for one in completed]
    known = [value for value, _, _ in scored]
    has_before = [True] * len(before)
    has_after = [value is not None for value in known]
    after = [0.0 if value is None else value for value in known]
    missing = what_is_missing(spec, episodes)
    compared: list[Sequence[float | None]] = [[None] * len(completed)] * 2
    if not missing:
        assert isinstance(spec, RLSpec)
        compared = [
            advantages(spec, completed, values, has).tolist()
            for values, has in ((before, has_before), (after, has_after))
        ]
    ranks = [_ranks(completed, values, has) for values, has in ((before, has_before), (after, has_after))]
    return Rescored(
        [
            RescoredEpisode(
                episode=one,
                before=before[n],
                after=known[n],
                error=scored[n][2],
                rank_before=ranks[0][n],
                rank_after=ranks[1][n] if has_after[n] else None,
                advantage_before=compared[0][n],
                advantage_after=compared[1][n] if has_after[n] else None,
                metrics=scored[n][1],
            )
            for n, one in enumerate(completed)
        ],
        origin,
        no_advantages=missing,
    )


Scorer = Callable[[StoredEpisode], tuple[float, Mapping[str, float]]]


def _scorer(reward: NewReward, episodes: StoredEpisodes, tasks: TaskSource | None) -> Scorer:
    if isinstance(reward, Rubric):
        return _of_rubric(reward, episodes, tasks)
    if isinstance(reward, type):
        return _of_environment(reward, episodes)
    return lambda episode: (finite(settled(reward(episode)), "reward"), {})


def _of_rubric(rubric: Rubric, episodes: StoredEpisodes, tasks: TaskSource | None) -> Scorer:
    groups = episodes.groups
    needed = {name for term in rubric.terms for name in term.needed}

    def facts(episode: StoredEpisode) -> dict[str, Any]:
        group = groups[episode.group_key]
        index = episode.trajectory.task_index
        row = tasks[index] if tasks is not None and index is not None else {}
        return {
            **row,
            "answer": episode.answers[-1],
            "answers": episode.answers,
            "messages": episode.messages,
            "observation": content_text(episode.trajectory.turns[0].observation),
            "reward": episode.trajectory.episode_return,
            "metrics": episode.metrics,
            "group_answers": [one.answers[-1] for one in group if one.answers],
            "place": [one for one in group if one.answers].index(episode),
        }

    if first := next((one for one in episodes if one.answers), None):
        missing = sorted(needed - facts(first).keys())
        if missing:
            raise InvalidRequestError(
                f"the rubric needs {', '.join(missing)}, which is not in the transcript or a task's row",
                hint="pass tasks= with rows that have it; an environment's internal state is not stored",
                field="reward",
            )

    def score(episode: StoredEpisode) -> tuple[float, Mapping[str, float]]:
        found = rubric.score(**facts(episode))
        return found.reward, found.metrics

    return score


def _of_environment(kind: type, episodes: StoredEpisodes) -> Scorer:
    if (
        not issubclass(kind, SingleTurnEnv)
        or kind.reply is not SingleTurnEnv.reply
        or kind.step is not TextEnv.step
    ):
        raise InvalidRequestError(
            f"the reward of {kind.__name__} depends on its own state, which is not stored",
            hint="rescore with a SingleTurnEnv whose score() reads the task and the answer, or with a Rubric",
            field="reward",
        )
    if len(ids := sorted({one.environment.id for one in episodes})) > 1:
        raise InvalidRequestError(
            f"{kind.__name__} is one environment, but the job played {', '.join(ids)}",
            hint="rescore with a Rubric or a function",
            field="reward",
        )
    made: dict[str, SingleTurnEnv] = {}

    def score(episode: StoredEpisode) -> tuple[float, Mapping[str, float]]:
        index = episode.trajectory.task_index
        options = None if index is None else {"task_index": index}
        key = episode.environment.model_dump_json()
        if key not in made:
            made[key] = kind(**_own_arguments(episode.environment.kwargs))
        env = made[key]
        observation, _ = env.reset(seed=episode.seed, options=options)
        shown = content_text(episode.trajectory.turns[0].observation)
        if len(episode.trajectory.turns) != 1 or observation_text(observation) != shown:
            raise InvalidRequestError(
                f"{kind.__name__} asks {observation_text(observation)[:80]!r} where episode "
                f"{episode.episode_id} was asked {shown[:80]!r}",
                hint="use the training environment, or one that asks the same questions",
                field="reward",
            )
        scored: Any = settled(env.score(episode.answers[0]))
        value, metrics = scored if isinstance(scored, tuple) else (scored, {})
        return finite(value, "score"), dict(metrics)

    return score


def _own_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment's arguments without the keys that only the service has."""
    return {
        name: _own_arguments(value) if isinstance(value, Mapping) else value
        for name, value in kwargs.items()
        if not (name in _KEYS and isinstance(value, str) and value.startswith(_HELD))
    }


def _scored(scorer: Scorer, episode: StoredEpisode) -> tuple[float | None, Mapping[str, float], str]:
    if not episode.answers:
        return episode.trajectory.episode_return, {}, ""
    try:
        value, metrics = scorer(episode)
    except InvalidRequestError:
        raise  # The error is in the call, not in this episode.
    except TinkerGymError as error:
        return None, {}, str(error)
    return value, metrics, ""


def _ranks(episodes: StoredEpisodes, values: Sequence[float], has: Sequence[bool]) -> list[int]:
    groups: dict[GroupKey, list[float]] = defaultdict(list)
    for n, one in enumerate(episodes):
        if has[n]:
            groups[one.group_key].append(values[n])
    return [1 + sum(other > values[n] for other in groups[one.group_key]) for n, one in enumerate(episodes)]


def _best(episodes: Sequence[RescoredEpisode], which: str) -> set[str]:
    most = max(getattr(one, which) for one in episodes)
    return {one.episode.episode_id for one in episodes if getattr(one, which) == most}


def _with_reward(episode: StoredEpisode, reward: float) -> StoredEpisode:
    """Return an episode with its last turn's reward changed so that its return is `reward`."""
    if not episode.trajectory.turns:
        return episode
    *before, last = episode.trajectory.turns
    earned = math.fsum(turn.reward for turn in before) + episode.trajectory.early_reward
    turns = [*before, last.model_copy(update={"reward": reward - earned})]
    return replace(episode, trajectory=episode.trajectory.model_copy(update={"turns": turns}))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _correlation(before: FloatArray, after: FloatArray) -> float:
    if len(before) < 2 or not before.std() or not after.std():
        return 0.0
    return float(np.corrcoef(before, after)[0, 1])
