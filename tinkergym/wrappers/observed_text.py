"""Change the text of an observation: for wrappers that add a line to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from tinkergym.errors import InvalidRequestError
from tinkergym.messages import observation_text


def require_text_observations(env: gym.Env[Any, Any], field: str) -> None:
    """Refuse an environment whose observations are neither text nor mappings with text under `text`.

    Raises:
        InvalidRequestError: They are not; `field` is the setting that needs text.
    """
    space = env.observation_space
    if isinstance(space, spaces.Dict):
        space = space.spaces.get("text", space)
    if not isinstance(space, spaces.Text):
        raise InvalidRequestError(
            f"adds a line to the text of an observation, but observations of {env} are {space}",
            hint="convert the observations to text first, with tinkergym.wrappers.Verbalize",
            field=field,
        )


def with_text(observation: Any, *, above: str = "", below: str = "") -> Any:
    """Return the observation with lines above and below its text."""
    text = "\n".join(part for part in (above, observation_text(observation), below) if part)
    return {**observation, "text": text} if isinstance(observation, Mapping) else text


def replaced_text(observation: Any, text: str) -> Any:
    """Return a copy of the observation with this text."""
    return {**observation, "text": text} if isinstance(observation, Mapping) else text
