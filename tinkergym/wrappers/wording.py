"""Wording: how one environment's observations and actions are written."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
from gymnasium import spaces

from tinkergym.errors import InvalidRequestError
from tinkergym.wrappers.space_words import how_to_say, read, refuse_unspeakable, say, say_as_json


class Wording:
    """The wording for any environment with plain spaces; subclass it for a specific environment.

    A subclass usually sets `rules` and `names` and overrides `observation`. It may read `self.env.unwrapped`,
    but must not change it or use its generator.

    Example:
        >>> class CliffWords(Wording):
        ...     rules = "Walk to G. C is the cliff."
        ...     names = ("up", "right", "down", "left")
        ...
        ...     def observation(self, observation, info):
        ...         return f"row {observation // 12}, column {observation % 12}"
    """

    rules: ClassVar[str] = ""
    """Part of the system prompt, before the answer format."""

    names: ClassVar[Sequence[str]] = ()
    """Names of the actions, in the order of a `Discrete` action space; without names they are numbers."""

    def __init__(
        self, env: gym.Env[Any, Any], *, names: Sequence[str] | None = None, decimals: int = 3
    ) -> None:
        """Set the environment to describe.

        Raises:
            InvalidEnvironmentError: One of its spaces is not supported.
            InvalidRequestError: The names do not match the action space, or two are the same.
        """
        self.env = env
        self.decimals = decimals
        self.action_names = tuple(self.names if names is None else names)
        refuse_unspeakable(env.observation_space, "observation")
        refuse_unspeakable(env.action_space, "action")
        self._numbers = {_normal(name): number for number, name in enumerate(self.action_names)}
        if self.action_names:
            space = env.action_space
            count = int(space.n) if isinstance(space, spaces.Discrete) else None
            if len(self._numbers) != len(self.action_names) or count != len(self.action_names):
                raise InvalidRequestError(
                    f"{list(self.action_names)} are not valid names for the actions of {space}",
                    hint="give each action of a Discrete space one name, all different",
                    field="action_names",
                )

    @property
    def system_prompt(self) -> str:
        """The rules and the answer format."""
        return f"{self.rules} {self.how_to_answer}".strip()

    @property
    def how_to_answer(self) -> str:
        """A sentence with the action format."""
        if self.action_names:
            return f"Answer with one of: {', '.join(self.action_names)}."
        return f"Answer with {how_to_say(self.env.action_space, self.decimals)}."

    def opening(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return the first observation of an episode in words."""
        return self.observation(observation, info)

    def observation(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return the observation after an action in words."""
        del info
        return say(self.env.observation_space, observation, self.decimals)

    def action(self, text: str) -> Any | None:
        """Return the action that a text names; None if it is not one.

        Surrounding whitespace and case are ignored, but additional words are not accepted.
        """
        if not self.action_names:
            return read(self.env.action_space, text)
        number = self._numbers.get(_normal(text))
        if number is None:
            return None
        space = self.env.action_space
        assert isinstance(space, spaces.Discrete)
        return space.dtype.type(space.start + number)

    def action_text(self, action: Any) -> str:
        """Return the text that `action` parses as this action (floats are rounded)."""
        space = self.env.action_space
        if self.action_names:
            assert isinstance(space, spaces.Discrete)
            return self.action_names[int(action - space.start)]
        if isinstance(space, spaces.Tuple | spaces.Dict) or len(space.shape or ()) > 1:
            return say_as_json(space, action, self.decimals)
        return say(space, action, self.decimals)

    def legal_actions(self) -> list[str] | None:
        """Return all possible actions as text; None if they cannot be listed."""
        space = self.env.action_space
        if not isinstance(space, spaces.Discrete):
            return None
        return [self.action_text(space.start + number) for number in range(int(space.n))]

    def gold_action(self) -> str | None:
        """Return the best action as text; None if it is unknown."""
        return None


def load_wording(name: str) -> type[Wording]:
    """Return the class that `module:Class` names.

    Raises:
        InvalidRequestError: There is no such class, or it is not a `Wording`.
    """
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidRequestError(
            f"{name!r} cannot be loaded: {error}", hint="write `module:Class`", field="wording"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Wording)):
        raise InvalidRequestError(
            f"{name!r} is not a subclass of tinkergym.wrappers.Wording", field="wording"
        )
    return found


def _normal(text: str) -> str:
    # Names are short, so the rest of a long text is irrelevant.
    return text.strip().casefold() if len(text) < 1000 else text
