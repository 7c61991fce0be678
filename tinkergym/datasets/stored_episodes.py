"""Stored episodes of a job: to read, to filter, and to train on as SFT or preference data.

Pure: built from a job's settings and the records that the service kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any, overload

from tinkergym.display.html import card, table
from tinkergym.display.pandas_tables import frame, with_metrics
from tinkergym.errors import InvalidRequestError
from tinkergym.messages import Message, assistant, system, user
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.ids import EpisodeId
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.seats import Train
from tinkergym.tasks.sequence import SequenceTasks
from tinkergym.trajectory.call_tree import call_tree
from tinkergym.trajectory.content_parts import Content, TextPart, ToolCallPart, ToolResultPart, content_text
from tinkergym.trajectory.trajectory import Trajectory

_SHOWN_IN_A_NOTEBOOK = 20

GroupKey = tuple[int, int, str]
"""Step, group within the step, and agent."""


@dataclass(frozen=True)
class StoredEpisode:
    """What one seat of a stored episode saw, did and earned."""

    episode_id: str
    step: int
    """The train step for which it was played."""
    index: int
    """Index within the step."""
    group: int
    """Episodes of one step with the same group start equal and were compared with each other."""
    environment: EnvironmentRef
    system_prompt: str | None
    trajectory: Trajectory
    template_date: str = ""
    """The date that the chat template wrote; empty if it writes none."""

    @property
    def agent(self) -> str:
        """The seat's agent."""
        return self.trajectory.agent

    @property
    def seed(self) -> int:
        """The environment's seed."""
        return self.trajectory.seed

    @property
    def completed(self) -> bool:
        """Whether its return is valid for training. A failed episode has no reward."""
        return self.trajectory.completed

    @property
    def reward(self) -> float | None:
        """The undiscounted return; None if the episode failed."""
        return self.trajectory.episode_return if self.completed else None

    @property
    def call_tree(self) -> str:
        """The calls of an agent program, each indented below the one that it continues."""
        return call_tree(self.trajectory)

    @property
    def group_key(self) -> GroupKey:
        """The key shared by episodes that were compared with each other."""
        return self.step, self.group, self.agent

    @property
    def metrics(self) -> dict[str, float]:
        """The environment's numbers; see `Trajectory.metrics`."""
        return self.trajectory.metrics

    @property
    def messages(self) -> list[Message]:
        """The conversation: observations have the role user, the policy's answers the role assistant.

        Ends with the last answer; the final observation is left out.
        """
        found: list[Message] = [system(self.system_prompt)] if self.system_prompt else []
        for turn in self.trajectory.turns:
            found += [*_observed(turn.observation), _spoken(turn.action)]
        return found

    @property
    def rendered_with(self) -> dict[str, Any]:
        """What a row of data needs, next to its messages, to be the tokens of the episode."""
        own = {"template_variables": self.trajectory.template_variables, "template_date": self.template_date}
        return {name: value for name, value in own.items() if value}

    def _repr_html_(self) -> str:
        """Show the conversation in a notebook, with the reward of each turn."""
        rows: dict[str, object] = {
            "step": f"{self.step}, group {self.group}",
            "return": "failed" if self.reward is None else f"{self.reward:+.4g}",
            "ended by": self.trajectory.stop_reason.value,
            "seed": self.seed,
        }
        rows |= {name: f"{value:.4g}" for name, value in self.metrics.items()}
        turns = [
            [number, content_text(turn.observation), content_text(turn.action), f"{turn.reward:+.4g}"]
            for number, turn in enumerate(self.trajectory.turns, 1)
        ]
        said = table(["turn", "observation", "action", "reward"], turns)
        error = f"<pre>{escape(self.trajectory.error)}</pre>" if self.trajectory.error else ""
        return card(f"{self.episode_id}, {self.agent}", rows, picture=said + error)

    @property
    def calls_tools(self) -> bool:
        """Whether an answer makes a call in the format of the model's own chat template."""
        return any(_calls(turn.action) for turn in self.trajectory.turns)

    @property
    def answers(self) -> list[str]:
        """The policy's answers, turn by turn."""
        return [content_text(turn.action) for turn in self.trajectory.turns]


class StoredEpisodes(Sequence[StoredEpisode]):
    """Episodes of a job, by step and index. Each trained seat counts as one."""

    def __init__(self, episodes: Iterable[StoredEpisode], *, origin: str = "episodes") -> None:
        """Wrap episodes. Users get them from `Job.episodes`."""
        self._episodes = list(episodes)
        self._origin = origin

    def __repr__(self) -> str:
        return f"<{len(self)} episodes of {self._origin}>"

    def _repr_html_(self) -> str:
        shown = [list(_row(one).values()) for one in self._episodes[:_SHOWN_IN_A_NOTEBOOK]]
        left = len(self) - len(shown)
        more = f"<small>and {left} more; `filter` and `to_pandas` have them</small>" if left else ""
        return table(list(_row(self._episodes[0])) if shown else [], shown) + more

    def __len__(self) -> int:
        return len(self._episodes)

    @overload
    def __getitem__(self, index: int) -> StoredEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> StoredEpisodes: ...
    def __getitem__(self, index: int | slice) -> StoredEpisode | StoredEpisodes:
        if isinstance(index, slice):
            return StoredEpisodes(self._episodes[index], origin=self._origin)
        return self._episodes[index]

    def __iter__(self) -> Iterator[StoredEpisode]:
        return iter(self._episodes)

    @cached_property
    def groups(self) -> dict[GroupKey, list[StoredEpisode]]:
        """The episodes grouped as they were compared."""
        found: dict[GroupKey, list[StoredEpisode]] = defaultdict(list)
        for episode in self._episodes:
            found[episode.group_key].append(episode)
        return dict(found)

    def filter(
        self,
        where: Callable[[StoredEpisode], bool] | None = None,
        *,
        min_reward: float | None = None,
        completed: bool | None = None,
        agent: str | None = None,
    ) -> StoredEpisodes:
        """Return the matching episodes.

        Args:
            where: A function from an episode to a bool.
            min_reward: Only completed ones with at least this return.
            completed: Only completed ones, or only failed ones.
            agent: Only this seat.
        """
        return StoredEpisodes(
            (
                one
                for one in self._episodes
                if (where is None or where(one))
                and (min_reward is None or (one.reward is not None and one.reward >= min_reward))
                and completed in (None, one.completed)
                and agent in (None, one.agent)
            ),
            origin=self._origin,
        )

    def to_sft(
        self,
        *,
        best_of: int | None = None,
        min_reward: float | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> SequenceTasks:
        """Return conversations for `client.sft`: rejection sampling, with the service's own episodes.

        Failed episodes and those with an empty answer, or none, are ignored.

        Args:
            best_of: Of every this many episodes of a group, keep the one with the highest return (the first
                of equals). None keeps all.
            min_reward: Then keep only returns of at least this.
            tools: The tools offered by the model's own chat template (`ToolCalling(..., syntax="native")`),
                as JSON Schema; stored episodes do not include them.

        Raises:
            InvalidRequestError: Nothing is left, or an episode calls tools in the template's own format
                without `tools`.
        """
        if best_of is not None and (isinstance(best_of, bool) or best_of < 1):
            raise InvalidRequestError(f"must be a number from 1, not {best_of!r}", field="best_of")
        chosen = [one for some in self._usable().values() for one in _best(some, best_of)]
        kept = [one for one in chosen if min_reward is None or _reward(one) >= min_reward]
        if tools is None and (calling := next((one for one in kept if one.calls_tools), None)):
            raise InvalidRequestError(
                f"episode {calling.episode_id} calls tools that the model's chat template offered",
                hint="pass tools=[tool.schema() for tool in env.tools.values()] of its ToolCalling wrapper",
                field="tools",
            )
        offered: dict[str, Any] = {"tools": list(tools)} if tools else {}
        return self._rows(
            [{"messages": one.messages, **one.rendered_with, **offered} for one in kept], "lower min_reward"
        )

    def to_preference(self, *, min_margin: float = 0.0) -> SequenceTasks:
        """Return pairs for `client.preference`: each group's best answer, and its worst to the same prompt.

        Multi-turn episodes diverge after their first answer, so they cannot be paired.

        Args:
            min_margin: The two returns differ by more than this.

        Raises:
            InvalidRequestError: No group has two different answers with different returns, or an episode has
                several turns.
        """
        rows = []
        for some in self._usable().values():
            long = next((one for one in some if len(one.trajectory.turns) > 1), None)
            if long is not None:
                raise InvalidRequestError(
                    f"episode {long.episode_id} has {len(long.trajectory.turns)} turns, but a pair needs "
                    f"one answer to one prompt",
                    hint="use episodes of single-turn environments, or to_sft(best_of=...)",
                    field="to_preference",
                )
            best, worst = max(some, key=_reward), min(some, key=_reward)
            same_prompt = best.messages[:-1] == worst.messages[:-1]
            same_prompt = same_prompt and best.rendered_with == worst.rendered_with
            if same_prompt and _reward(best) - _reward(worst) > min_margin and best.answers != worst.answers:
                rows.append(
                    {
                        "messages": best.messages[:-1],
                        "chosen": best.answers[0],
                        "rejected": worst.answers[0],
                        **best.rendered_with,
                    }
                )
        return self._rows(rows, "use more steps, or lower min_margin")

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row per episode; metrics are columns.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return frame(with_metrics(_row(one), one.metrics) for one in self._episodes)

    def _usable(self) -> Mapping[GroupKey, list[StoredEpisode]]:
        usable = {
            key: [one for one in some if one.completed and one.answers and all(one.answers)]
            for key, some in self.groups.items()
        }
        return {key: some for key, some in usable.items() if some}

    def _rows(self, rows: list[dict[str, Any]], hint: str) -> SequenceTasks:
        if not rows:
            raise InvalidRequestError(f"none of {self!r} is left to train on", hint=hint, field="data")
        return SequenceTasks(rows)


def _calls(action: Content) -> list[ToolCallPart]:
    return [] if isinstance(action, str) else [part for part in action if isinstance(part, ToolCallPart)]


def _spoken(action: Content) -> Message:
    calls = _calls(action)
    if not calls:
        return assistant(content_text(action))
    said = "".join(part.text for part in action if isinstance(part, TextPart))
    written = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
        for one in calls
    ]
    return {"role": "assistant", "content": said, "tool_calls": written}


def _observed(observation: Content) -> list[Message]:
    results = [] if isinstance(observation, str) else observation
    if not any(isinstance(part, ToolResultPart) for part in results):
        return [user(content_text(observation))]
    return [
        {"role": "tool", "content": part.text, "tool_call_id": part.id}
        if isinstance(part, ToolResultPart)
        else user(content_text([part]))
        for part in results
    ]


def stored_episodes(spec: PlayedSpec, records: Iterable[bytes], *, origin: str) -> StoredEpisodes:
    """Read a job's episodes from its settings and the records that the service kept.

    Args:
        spec: The job's settings.
        records: The JSON of each record.
        origin: A name for the episodes.
    """
    found: list[StoredEpisode] = []
    group_size = spec.groups.size
    for record in records:
        result = EpisodeResult.model_validate_json(record)
        own = EpisodeId.parse(result.episode_id)
        group = own.index // group_size
        environment = spec.environment_at(own.step, group)
        found += [
            StoredEpisode(
                episode_id=result.episode_id,
                step=own.step,
                index=own.index,
                group=group,
                environment=environment,
                system_prompt=prompt_of(spec, trajectory.agent),
                trajectory=trajectory,
                template_date=spec.template_date,
            )
            for trajectory in result.trajectories
            if trajectory.trained
        ]
    return StoredEpisodes(sorted(found, key=lambda one: (one.step, one.index)), origin=origin)


def prompt_of(spec: PlayedSpec, agent: str) -> str | None:
    """Return the system prompt of a seat of a job's episodes."""
    seat = spec.seats.get(agent)
    own = seat.system_prompt if isinstance(seat, Train) else None
    return spec.effective_prompt if own is None else own


def _best(episodes: Sequence[StoredEpisode], best_of: int | None) -> list[StoredEpisode]:
    if best_of is None:
        return list(episodes)
    return [max(episodes[start : start + best_of], key=_reward) for start in range(0, len(episodes), best_of)]


def _reward(episode: StoredEpisode) -> float:
    return episode.trajectory.episode_return


def _row(one: StoredEpisode) -> dict[str, Any]:
    return {
        "episode_id": one.episode_id,
        "step": one.step,
        "group": one.group,
        "agent": one.agent,
        "seed": one.seed,
        "task_index": one.trajectory.task_index,
        "reward": one.reward,
        "stop_reason": one.trajectory.stop_reason.value,
        "turns": len(one.trajectory.turns),
        "answer": one.answers[-1] if one.answers else "",
    }
