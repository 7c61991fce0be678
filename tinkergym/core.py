"""Sugar for text environments. A hand-written `gymnasium.Env` is accepted wherever these are."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym

from tinkergym.errors import EpisodeProtocolError, InvalidEnvironmentError
from tinkergym.spaces import Text
from tinkergym.tasks.grid import with_tasks
from tinkergym.tasks.source import TaskSource
from tinkergym.user_code.awaiting import settled

Options = dict[str, Any]

Scored = float | tuple[float, dict[str, float]]
"""A reward, or one with named metrics."""


class TextEnv(gym.Env[str, str]):
    """A text environment from two methods, `start` and `reply`.

    All randomness comes from `self.np_random`, which `reset` has seeded when `start` is called, so that a
    seed gives the same episode anywhere. An observation holds only what is new since the last action.

    Its place in the grid (`tinkergym.tasks.grid`) is filled in: multi-turn, and data-dependent once it
    keeps a `TaskSource` under any attribute. A class that knows better says so in its `metadata`.

    Example:
        >>> class Countdown(TextEnv):
        ...     system_prompt = "Count down to 0, one number at a time."
        ...
        ...     def start(self, options):
        ...         self.next = int(self.np_random.integers(2, 9))
        ...         return f"Start at {self.next}."
        ...
        ...     def reply(self, action):
        ...         right = action.strip() == str(self.next)
        ...         self.next -= 1
        ...         over = not right or self.next < 0
        ...         return ("" if over else "Go on."), float(right and over), over
    """

    metadata: dict[str, Any] = {"render_modes": [], "turns": "multi", "data": "free"}  # noqa: RUF012 - Gymnasium declares it so
    system_prompt: ClassVar[str] = ""
    """Stands before the first observation unless a job brings its own."""

    observation_space: gym.Space[str]
    action_space: gym.Space[str]
    _playing = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A class that writes `metadata` for its renderer does not mean to leave its parent's cell.
        parents: dict[str, Any] = getattr(super(cls, cls), "metadata", {})
        cell: dict[str, Any] = {key: parents[key] for key in ("turns", "data", "splits") if key in parents}
        cls.metadata = {**cell, **cls.metadata}
        if cls.system_prompt:
            cls.metadata["system_prompt"] = cls.system_prompt
        for value in list(vars(cls).values()):
            if isinstance(value, TaskSource):
                cls.metadata = with_tasks(cls.metadata, value)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Give every instance its spaces, also where a subclass does not call `super().__init__()`."""
        del args, kwargs
        env = super().__new__(cls)
        env.observation_space, env.action_space = Text(), Text()
        return env

    # Not for mypy, which would then let anybody set any attribute.
    if not TYPE_CHECKING:

        def __setattr__(self, name, value):
            if isinstance(value, TaskSource):
                self.metadata = with_tasks(self.metadata, value)
            super().__setattr__(name, value)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def start(self, options: Options) -> str:
        """Begin an episode and return the first observation.

        Args:
            options: What `reset` was given; `options.get("task_index")` names a task.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method start(options)")

    def reply(self, action: str) -> tuple[str, float, bool] | tuple[str, float, bool, dict[str, Any]]:
        """Answer an action with (observation, reward, terminated), and optionally an info dict.

        Numbers under `info["metrics"]` become curves of the job.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method reply(action)")

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        observation = self.start(dict(options or {}))
        self._playing = True
        return observation, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Hand the action to `reply`; a `TextEnv` terminates and leaves truncation to wrappers and limits.

        Raises:
            EpisodeProtocolError: No episode is running.
        """
        if not self._playing:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        observation, reward, terminated, *rest = self.reply(action)
        self._playing = not terminated
        return observation, reward, terminated, False, dict(rest[0]) if rest else {}


class SingleTurnEnv(TextEnv):
    """A question and one answer, from two methods, `ask` and `score`.

    Example:
        >>> class Capitals(SingleTurnEnv):
        ...     def ask(self, options):
        ...         self.country, self.capital = CAPITALS[int(self.np_random.integers(len(CAPITALS)))]
        ...         return f"Capital of {self.country}?"
        ...
        ...     def score(self, answer):
        ...         return float(answer.strip() == self.capital)
    """

    metadata: dict[str, Any] = {"render_modes": [], "turns": "single"}  # noqa: RUF012 - as above

    def ask(self, options: Options) -> str:
        """Choose a question and return it."""
        raise NotImplementedError(f"{type(self).__name__} needs a method ask(options)")

    def score(self, answer: str) -> Scored | Awaitable[Scored]:
        """Return the answer's reward, and optionally named metrics; may be an `async def`."""
        raise NotImplementedError(f"{type(self).__name__} needs a method score(answer)")

    def start(self, options: Options) -> str:
        """Ask."""
        return self.ask(options)

    def reply(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Score the answer and terminate: one turn is the whole task, so nothing is cut off."""
        scored = settled(self.score(action))
        reward, metrics = scored if isinstance(scored, tuple) else (scored, {})
        return "", reward, True, {"metrics": dict(metrics)} if metrics else {}


def refuse_unfinished(env: gym.Env[Any, Any]) -> None:
    """Check that an environment has what its first answer will need; its reset shows the rest.

    Raises:
        InvalidEnvironmentError: its class lacks a method, or one of them is an `async def`.
    """
    kind = type(env.unwrapped)
    for name in ("reset", "step", "start", "reply", "ask"):
        if inspect.iscoroutinefunction(getattr(kind, name, None)):
            raise InvalidEnvironmentError(
                f"{kind.__name__}.{name} is an async def, and nobody awaits it",
                hint="write it with def; inside, asyncio.run waits for what is async",
                field="environment",
            )
    if not issubclass(kind, TextEnv) or kind.step is not TextEnv.step:
        return
    missing = ""
    if kind.reply is TextEnv.reply:
        missing = "reply(action)"
    elif issubclass(kind, SingleTurnEnv) and (kind.reply, kind.score) == (
        SingleTurnEnv.reply,
        SingleTurnEnv.score,
    ):
        missing = "score(answer)"
    if missing:
        raise InvalidEnvironmentError(
            f"{kind.__name__} needs a method {missing}",
            hint="it judges the policy's answer; docs/guides/environments.md shows one",
            field="environment",
        )
