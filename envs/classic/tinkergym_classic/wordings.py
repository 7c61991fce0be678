"""The text of each environment. Short, because a policy pays for every token on every turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinkergym.wrappers.wording import Wording
from tinkergym_classic.blackjack_strategy import should_hit
from tinkergym_classic.tabular import best_actions


class _TableWording(Wording):
    """The wording of an environment whose `P` lists all transitions and whose `s` is the state."""

    _best: NDArray[np.int64] | None = None

    def gold_action(self) -> str | None:
        """Return an action with the highest expected return."""
        env: Any = self.env.unwrapped
        if getattr(env, "s", None) is None:
            return None
        if self._best is None:
            self._best = best_actions(env.P)
        return self.action_names[int(self._best[int(env.s)])]


class FrozenLakeWording(_TableWording):
    """The map with the agent on it, every turn."""

    names = ("left", "down", "right", "up")

    @property
    def system_prompt(self) -> str:
        """The rules, including whether the ice is slippery."""
        env: Any = self.env.unwrapped
        slippery = any(len(env.P[state][0]) > 1 for state in env.P)
        ice = "The ice is slippery: you may slide to the side. " if slippery else ""
        return (
            "Walk over a frozen lake to G. @ is you, F is ice, S is where you started; H is a hole, which "
            f"ends the walk. {ice}{self.how_to_answer}"
        )

    def observation(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return the map, one row per line; `@` marks the agent."""
        del info
        env: Any = self.env.unwrapped
        cells = [cell.decode() for cell in env.desc.reshape(-1)]
        cells[int(observation)] = "@"
        return "\n".join(" ".join(cells[i : i + env.ncol]) for i in range(0, len(cells), env.ncol))


class TaxiWording(_TableWording):
    """The map once, then all positions."""

    rules = (
        "Drive a taxi: pick the passenger up and drop them off at their destination. R, G, Y and B are "
        "stands. Between two columns : can be crossed and | is a wall. Rows are counted from the top and "
        "columns from the left, both from 0."
    )
    names = ("south", "north", "east", "west", "pickup", "dropoff")
    _STANDS = "RGYB"

    def opening(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return the map and the positions."""
        env: Any = self.env.unwrapped
        city = "\n".join("".join(cell.decode() for cell in row) for row in env.desc)
        return f"{city}\n{self.observation(observation, info)}"

    def observation(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return the positions of taxi and passenger, and the passenger's destination."""
        del info
        env: Any = self.env.unwrapped
        row, column, passenger, goal = (int(number) for number in env.decode(int(observation)))
        where = "in the taxi" if passenger == len(self._STANDS) else f"at {self._STANDS[passenger]}"
        return f"Taxi: row {row}, column {column}. Passenger: {where}. Destination: {self._STANDS[goal]}."

    def gold_action(self) -> str | None:
        """Return the next action of a shortest ride."""
        # A passenger who may change their mind is not in the table of transitions.
        env: Any = self.env.unwrapped
        return None if env.fickle_passenger else super().gold_action()


class CliffWalkingWording(_TableWording):
    """The map once, then the position."""

    rules = (
        "Walk from S to G. C is a cliff: who falls starts again at S. Rows are counted from the top and "
        "columns from the left, both from 0."
    )
    names = ("up", "right", "down", "left")

    def opening(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return the map and the position."""
        env: Any = self.env.unwrapped
        rows, columns = env.shape
        cells = np.where(env._cliff, "C", ".")
        cells[rows - 1, 0], cells[rows - 1, columns - 1] = "S", "G"
        return "\n".join(" ".join(row) for row in cells) + f"\n{self.observation(observation, info)}"

    def observation(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return the position."""
        del info
        env: Any = self.env.unwrapped
        row, column = divmod(int(observation), env.shape[1])
        return f"Row {row}, column {column}."


class BlackjackWording(Wording):
    """The hand's sum and the dealer's open card."""

    rules = (
        "Blackjack: come closer to 21 than the dealer, but not above it. hit draws a card, stick ends your "
        "turn, and the dealer then draws to 17."
    )
    names = ("stick", "hit")

    def observation(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return both hands as far as they are visible."""
        del info
        total, dealer, usable_ace = (int(number) for number in observation)
        ace = ", with an ace counted as 11" if usable_ace else ""
        return f"You have {total}{ace}. The dealer shows {'an ace' if dealer == 1 else dealer}."

    def gold_action(self) -> str | None:
        """Return the action with the highest expected return."""
        env: Any = self.env.unwrapped
        if not hasattr(env, "player"):
            return None
        total, dealer, usable_ace = env._get_obs()
        return "hit" if total <= 21 and should_hit(int(total), int(dealer), bool(usable_ace)) else "stick"


class CartPoleWording(Wording):
    """The four numbers of the state, by name."""

    rules = (
        "Keep the pole upright by pushing the cart. Position and speed are those of the cart, angle (in "
        "radians) and turn (radians per second) those of the pole; positive is to the right. It ends when "
        "the angle leaves -0.209 to 0.209 or the position -2.4 to 2.4."
    )
    names = ("left", "right")

    def observation(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return position, speed, angle and turn, rounded to the declared decimals."""
        del info
        # Rounding may give -0.0, which would look meaningful.
        position, speed, angle, turn = (
            f"{round(float(number), self.decimals) + 0.0:.{self.decimals}f}" for number in observation
        )
        return f"position {position}, speed {speed}, angle {angle}, turn {turn}"

    def gold_action(self) -> str | None:
        """Return the push of a linear controller, which keeps the pole up until the time limit."""
        state = getattr(self.env.unwrapped, "state", None)
        if state is None:
            return None
        position, speed, angle, turn = (float(number) for number in state)
        return "right" if 0.05 * position + 0.1 * speed + angle + 0.25 * turn > 0 else "left"
