"""The text of an observation, changed in place: for wrappers that add a line to what an environment shows."""

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
        InvalidRequestError: They are something else; `field` is the setting that needs text.
    """
    space = env.observation_space
    if isinstance(space, spaces.Dict):
        space = space.spaces.get("text", space)
    if not isinstance(space, spaces.Text):
        raise InvalidRequestError(
            f"adds a line to the text of an observation, but {env} shows {space}",
            hint="put the observations into words first, with tinkergym.wrappers.Verbalize",
            field=field,
        )


def with_text(observation: Any, *, above: str = "", below: str = "") -> Any:
    """Return the observation with lines above and below its text."""
    text = "\n".join(part for part in (above, observation_text(observation), below) if part)
    return {**observation, "text": text} if isinstance(observation, Mapping) else text


def replaced_text(observation: Any, text: str) -> Any:
    """Return an observation like this one that says `text`."""
    return {**observation, "text": text} if isinstance(observation, Mapping) else text
