"""The area of a drawn figure, answered with a number."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from tinkergym.errors import EpisodeProtocolError
from tinkergym.spaces import Image, Text
from tinkergym_geometry.figures import AREAS, SIDE, Figure, Pixels, draw

QUESTION = "Find the area."

Observation = dict[str, Any]
"""`image` and `text`."""


class AreaEnv(gym.Env[Observation, str]):
    """Find the area of the rectangle or right triangle in a picture. See the pack's README."""

    metadata: dict[str, Any] = {  # noqa: RUF012 - Gymnasium declares it so
        "render_modes": ["rgb_array"],
        "render_fps": 1,
        "turns": "single",
        "data": "free",
    }

    def __init__(
        self, swapped: bool = False, instructions: bool = False, render_mode: str | None = None
    ) -> None:
        """Create the environment.

        Args:
            swapped: Show a picture of a different figure. Then there is nothing to learn, which serves as a
                control for whether a policy learns from pictures.
            instructions: Explain the task in a system prompt, for models not trained on these pictures.
            render_mode: `rgb_array` returns the picture.
        """
        self.render_mode = render_mode
        if instructions:
            self.metadata = {**self.metadata, "system_prompt": "Answer with the number, nothing else."}
        self.observation_space = gym.spaces.Dict({"image": Image(SIDE, SIDE), "text": Text()})
        self.action_space = Text()
        self._swapped = swapped
        self._figure: Figure | None = None
        self._picture: Pixels | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw a figure."""
        super().reset(seed=seed)
        self._figure = Figure.drawn_by(self.np_random)
        shown = Figure.drawn_by(self.np_random) if self._swapped else self._figure
        self._picture = draw(shown, self.np_random)
        return {"image": self._picture.copy(), "text": QUESTION}, {}

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Earn 1 for the right number, 0 for anything else; answers that are not numbers are counted.

        Raises:
            EpisodeProtocolError: No episode is running.
        """
        if self._figure is None:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        said = action.strip()
        correct = float(said == self.gold_action())
        self._figure = None
        metrics = {"correct": correct, "unreadable": float(not (said.isascii() and said.isdigit()))}
        # The space has no empty picture, so the last one is repeated; no answer to it is expected.
        assert self._picture is not None
        return {"image": self._picture.copy(), "text": ""}, correct, True, False, {"metrics": metrics}

    def render(self) -> Pixels | None:
        """Return the picture."""
        shown = self.render_mode == "rgb_array" and self._picture is not None
        return self._picture.copy() if shown and self._picture is not None else None

    def gold_action(self) -> str:
        """Return the right number."""
        assert self._figure is not None
        return str(self._figure.area)

    def legal_actions(self) -> list[str]:
        """Return every number that is the area of some figure."""
        return list(map(str, AREAS))
