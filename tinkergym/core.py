"""Base classes that make text environments shorter.

A plain `gymnasium.Env` is accepted wherever these are.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym

from tinkergym.errors import EpisodeProtocolError, InvalidEnvironmentError
from tinkergym.spaces import Text
from tinkergym.tasks.grid import with_tasks
from tinkergym.tasks.source import TaskSource
from tinkergym.user_code.returned_values import settled

Options = dict[str, Any]

Scored = float | tuple[float, dict[str, float]]
"""A reward, or one with named metrics."""


class TextEnv(gym.Env[str, str]):
    """A text environment from two methods, `start` and `reply`.

    Take all randomness from `self.np_random`, which `reset` seeds before it calls `start`. Then a seed and
    the same actions give the same episode anywhere. An observation contains only what is new since the last
    action.

    Its kind (`tinkergym.tasks.grid`) is set automatically: multi-turn, and data-dependent if an attribute is
    a `TaskSource`. Set it in `metadata` to override this.

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
    """Precedes the first observation unless the job sets a system prompt."""
    template_variables: Mapping[str, Any] = {}
    """Values of names that the model's chat template reads, such as `{"enable_thinking": False}`. Set
    `self.template_variables` in `start` or `ask` for those of one task. A job's own replace them."""

    observation_space: gym.Space[str]
    action_space: gym.Space[str]
    _playing = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A class that sets `metadata` for its renderer keeps its parent's kind.
        parents: dict[str, Any] = getattr(super(cls, cls), "metadata", {})
        cell: dict[str, Any] = {key: parents[key] for key in ("turns", "data", "splits") if key in parents}
        cls.metadata = {**cell, **cls.metadata}
        if cls.system_prompt:
            cls.metadata["system_prompt"] = cls.system_prompt
        for value in list(vars(cls).values()):
            if isinstance(value, TaskSource):
                cls.metadata = with_tasks(cls.metadata, value)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Give every instance its spaces, even if a subclass does not call `super().__init__()`."""
        del args, kwargs
        env = super().__new__(cls)
        env.observation_space, env.action_space = Text(), Text()
        return env

    # Hidden from mypy, which would otherwise allow setting any attribute.
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
            options: The `options` of `reset`; `options.get("task_index")` selects a task.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method start(options)")

    def reply(self, action: str) -> tuple[str, float, bool] | tuple[str, float, bool, dict[str, Any]]:
        """Return (observation, reward, terminated) for an action, and optionally an info dict.

        Numbers under `info["metrics"]` become metrics of the job. The reward must be a finite number of at
        most 1e12 in size, otherwise the episode ends as `invalid_reward`; an exception ends it as
        `environment_error`. Neither counts as a reward of 0.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method reply(action)")

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        observation = self.start(dict(options or {}))
        self._playing = True
        variables = self.template_variables
        return observation, {"template_variables": dict(variables)} if variables else {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Pass the action to `reply`. A `TextEnv` never truncates: that is left to wrappers and limits.

        Raises:
            EpisodeProtocolError: No episode is running.
        """
        if not self._playing:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        observation, reward, terminated, *rest = self.reply(action)
        self._playing = not terminated
        return observation, reward, terminated, False, dict(rest[0]) if rest else {}


class SingleTurnEnv(TextEnv):
    """One question and one answer, from two methods, `ask` and `score`.

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
        """Return the answer's reward, and optionally named metrics; may be an `async def`.

        The reward is a finite number, as in `TextEnv.reply`. Raise `InvalidRewardError` if the answer cannot
        be scored; the episode is then dropped, not scored with 0.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method score(answer)")

    def start(self, options: Options) -> str:
        """Ask the question."""
        return self.ask(options)

    def reply(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Score the answer and terminate."""
        scored = settled(self.score(action))
        reward, metrics = scored if isinstance(scored, tuple) else (scored, {})
        return "", reward, True, {"metrics": dict(metrics)} if metrics else {}


def refuse_unfinished(env: gym.Env[Any, Any]) -> None:
    """Check that an environment has the methods that its first step will need.

    Raises:
        InvalidEnvironmentError: Its class lacks a method, or one of them is an `async def`.
    """
    kind = type(env.unwrapped)
    for name in ("reset", "step", "start", "reply", "ask"):
        if inspect.iscoroutinefunction(getattr(kind, name, None)):
            raise InvalidEnvironmentError(
                f"{kind.__name__}.{name} is an async def, which is not awaited",
                hint="use def, and call asyncio.run inside for asynchronous code",
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
            hint="see docs/guides/environments.md for an example",
            field="environment",
        )
