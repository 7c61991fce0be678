"""Running baselines: the mean return so far at each seat of a game, against each kind of opponent.

A step's episodes are compared with the means from before the step, and added to them afterwards. So a
baseline never contains the episodes compared with it, and a step that is repeated after a kill has the same
baselines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.episodes.binding import class_of
from backend.episodes.played import PlayedSeat


@dataclass(slots=True)
class RunningBaselines:
    """Exponential means of returns, by game, seat and opponents."""

    _sums: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Decayed sum of returns and number of episodes."""

    def value(self, seat: PlayedSeat, decay: float) -> float:
        """Return the expected return at a seat; 0 before the first episode."""
        total, count = self._sums.get(key_of(seat), (0.0, 0))
        # Bias correction as in Adam (arXiv:1412.6980): without it the first means would be biased towards 0.
        return total / (1.0 - decay**count) if count else 0.0

    def add(self, earned: Iterable[tuple[PlayedSeat, float]], decay: float) -> None:
        """Add episodes to the means, in order."""
        for seat, reward in earned:
            key = key_of(seat)
            total, count = self._sums.get(key, (0.0, 0))
            self._sums[key] = (decay * total + (1.0 - decay) * reward, count + 1)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {key: list(pair) for key, pair in self._sums.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._sums = {key: (float(total), int(count)) for key, (total, count) in state.items()}


def key_of(seat: PlayedSeat) -> str:
    """Return the key of an episode's baseline: game, seat, and the kinds of its opponents."""
    request, agent = seat.request, seat.trajectory.agent
    opponents = sorted(class_of(one.player) for other, one in request.seats.items() if other != agent)
    return f"{request.environment.model_dump_json()}|{agent}|{'+'.join(opponents)}"
