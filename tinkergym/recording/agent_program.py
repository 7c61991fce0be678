"""AgentProgram: a function that runs an agent, in the place of an environment; and what it gets.

The function is played as it is. It may call any program in any framework: all that its episode needs are
calls to the session's URL.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
from gymnasium.utils import seeding

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.tasks.sequence import SequenceTasks
from tinkergym.tasks.source import TaskSource
from tinkergym.user_code.returned_values import settled

Rewards = float | Mapping[str, float | None] | None
"""A number, one per role, or None to drop the episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSession:
    """One run of the program: its task, and where its calls go."""

    key: str = field(repr=False)
    """The API key. It is valid for this session alone, and until it ends."""
    urls: Mapping[str, str]
    """The base URL of the OpenAI API, by role."""
    task: Any = None
    """One of the job's tasks; None without tasks."""
    seed: int = 0
    """The same for all sessions that are compared with each other."""
    is_evaluation: bool = False
    """Whether nothing of it is trained on."""
    name: str = ""
    """Identifies it in its URLs."""
    reward_url: str = ""
    """Where a program may post the reward as JSON, with the key, if the function cannot know it."""
    timeout_seconds: float = 3600.0
    """How long the session lasts at most."""
    posted_reward: Callable[[float], Any] = field(default=lambda _: None, repr=False, compare=False)
    """Waits so many seconds until a reward is posted to `reward_url`, and returns it; None if none is."""
    has_posted: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)
    """Returns whether one was posted, None included; it counts instead of what the function returns."""

    def url(self, role: str = "") -> str:
        """Return the base URL of a role's calls; of the only role without a name.

        Raises:
            InvalidRequestError: The job has no such role.
        """
        if not role and len(self.urls) == 1:
            return next(iter(self.urls.values()))
        if role not in self.urls:
            raise InvalidRequestError(
                f"there is no role {role!r:.80}", hint=f"the roles are {', '.join(self.urls)}", field="role"
            )
        return self.urls[role]

    def environment(self, role: str = "") -> dict[str, str]:
        """Return the environment variables by which a program finds the URL, the key and its task.

        They are `OPENAI_BASE_URL`, of the first role without a name; `OPENAI_BASE_URL_ROLE` for
        each role; `OPENAI_API_KEY`, `TINKERGYM_TASK` and `TINKERGYM_REWARD_URL`.
        """
        own = {f"OPENAI_BASE_URL_{name.upper()}": url for name, url in self.urls.items()}
        return {
            **own,
            "OPENAI_BASE_URL": self.url(role or next(iter(self.urls))),
            "OPENAI_API_KEY": self.key,
            "TINKERGYM_TASK": self.task if isinstance(self.task, str) else json.dumps(self.task),
            "TINKERGYM_REWARD_URL": self.reward_url,
        }


Play = Callable[[ProgramSession], Rewards | Awaitable[Rewards]]


class AgentProgram(gym.Env[str, str]):
    """Runs a function per episode. It takes the place of an environment, but is not stepped."""

    def __init__(self, play: Play, tasks: TaskSource | Sequence[Any] | None) -> None:
        """Set the function and its tasks, which may be anything."""
        self._play = play
        self._wraps = not isinstance(tasks, TaskSource | None) and not all(
            isinstance(one, Mapping) for one in tasks
        )
        if self._wraps:
            tasks = [{"task": one} for one in tasks or ()]
        self.tasks = tasks if isinstance(tasks, TaskSource | None) else SequenceTasks(tasks)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Raise an error: the program itself says when it acts.

        Raises:
            EpisodeProtocolError: Always.
        """
        raise EpisodeProtocolError(
            "an agent program has no reset and no step", hint="use client.train_agent(play, tasks, ...)"
        )

    def play(self, session: ProgramSession, task_index: int | None) -> Rewards:
        """Run the program with the task of this number, or with one that the session's seed draws."""
        if self.tasks is None:
            return settled(self._play(session))
        draw, _ = seeding.np_random(session.seed)
        _, task = self.tasks.choose(draw, {"task_index": task_index})
        return settled(self._play(replace(session, task=task["task"] if self._wraps else task)))
