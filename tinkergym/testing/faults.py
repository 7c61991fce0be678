"""Environments with one fault each, for tests of anything that plays episodes.

The fault occurs in episodes with an odd seed, so the others show whether they were affected. Module-level
classes, so that they can run in their own processes.
"""

from __future__ import annotations

import math
import os
import threading
from typing import Any

import gymnasium as gym

from tinkergym.core import TextEnv
from tinkergym.errors import EnvironmentInfrastructureError, InvalidRewardError
from tinkergym.schema.jobs.parts import EnvironmentRef

HANG_SECONDS = 3600.0
hangs_end = threading.Event()
"""Ends what hangs in this process: a thread, unlike a process, cannot be ended from outside."""


class Sound(TextEnv):
    """Three turns with reward 1 each; the base of the faulty ones."""

    wrong = False

    def start(self, options: dict[str, Any]) -> str:
        """Return how many turns are left."""
        self.left = 3
        self.wrong = bool(self.np_random_seed % 2)
        return "3 left"

    def reply(self, action: str) -> tuple[str, float, bool]:
        """Pay 1."""
        if self.wrong:
            self.go_wrong()
        self.left -= 1
        return f"{self.left} left", 1.0, self.left == 0

    def go_wrong(self) -> None:
        """Called in the second half of a faulty episode's first turn."""


class RaisesInReset(Sound):
    """Raises in `reset`."""

    def start(self, options: dict[str, Any]) -> str:
        """Raise, or show how many turns are left."""
        text = super().start(options)
        if self.wrong:
            raise RuntimeError("the board is missing")
        return text


class RaisesInStep(Sound):
    """Raises in `step`."""

    def go_wrong(self) -> None:
        """Raise."""
        raise RuntimeError("the piece fell off the board")


class LosesItsServer(Sound):
    """Its infrastructure is gone."""

    def go_wrong(self) -> None:
        """Raise."""
        raise EnvironmentInfrastructureError("the tool's server does not respond")


class HangsInReset(Sound):
    """Never returns from `reset`."""

    def start(self, options: dict[str, Any]) -> str:
        """Hang, or show how many turns are left."""
        text = super().start(options)
        if self.wrong:
            hangs_end.wait(HANG_SECONDS)
        return text


class HangsInStep(Sound):
    """Never returns from `step`."""

    def go_wrong(self) -> None:
        """Hang."""
        hangs_end.wait(HANG_SECONDS)


class PaysNaN(Sound):
    """Its reward is not a number."""

    def reply(self, action: str) -> tuple[str, float, bool]:
        """Pay NaN, or 1."""
        text, reward, over = super().reply(action)
        return text, math.nan if self.wrong else reward, over


class CannotScore(Sound):
    """Cannot compute its reward."""

    def go_wrong(self) -> None:
        """Raise."""
        raise InvalidRewardError("the judge gave no score")


class Dies(Sound):
    """Ends its process: only for environments in their own processes."""

    def go_wrong(self) -> None:
        """End the process."""
        os._exit(3)


class NeverEnds(Sound):
    """Never ends."""

    def reply(self, action: str) -> tuple[str, float, bool]:
        """Pay 1; a faulty episode never ends."""
        return ("on and on", 1.0, False) if self.wrong else super().reply(action)


class ReturnsGarbage(gym.Wrapper[Any, Any, Any, Any]):
    """Returns something that the Gymnasium interface does not allow."""

    def __init__(self) -> None:
        """Wrap a correct environment."""
        super().__init__(Sound())

    def step(self, action: Any) -> Any:
        """Return four values, or the environment's result."""
        stepped = self.env.step(action)
        return stepped[:4] if self.get_wrapper_attr("wrong") else stepped


class ReturnsTheUnsendable(ReturnsGarbage):
    """Returns something that cannot be sent between processes."""

    def step(self, action: Any) -> Any:
        """Return a function as the observation, or the environment's result."""
        stepped = self.env.step(action)
        return (lambda: "3 left", *stepped[1:]) if self.get_wrapper_attr("wrong") else stepped


FAULTS: dict[str, type[gym.Env[Any, Any]]] = {
    kind.__name__: kind
    for kind in (
        Sound,
        RaisesInReset,
        RaisesInStep,
        LosesItsServer,
        HangsInReset,
        HangsInStep,
        PaysNaN,
        CannotScore,
        Dies,
        NeverEnds,
        ReturnsGarbage,
        ReturnsTheUnsendable,
    )
}
"""Environments by name."""


def make_fault(reference: EnvironmentRef) -> gym.Env[Any, Any]:
    """Create the environment named by the reference."""
    return FAULTS[reference.id]()
