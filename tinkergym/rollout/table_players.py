"""Players at a game's own table: they act inside the game's process, without a policy.

The table calls them at their agent's turn, and shows the results to the policies' seats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tinkergym.errors import (
    InvalidEnvironmentError,
    InvalidRequestError,
    NoCompletionError,
    OpponentFailedError,
    TinkerGymError,
)
from tinkergym.games.against_opponent import TextPlayer
from tinkergym.messages import observation_text
from tinkergym.network.model_urls import origin_of
from tinkergym.rollout.environment_host import system_prompt_of
from tinkergym.rollout.external_player import ExternalPlayer
from tinkergym.schema.episodes import TablePlayer


class SeatedPlayer(Protocol):
    """Plays one agent of one game."""

    def act(self, agent: str, observation: Any) -> Any:
        """Return the agent's action; it is the agent's turn.

        Args:
            agent: The agent that it plays.
            observation: What happened since the agent's last action.
        """
        ...


class ScriptedPlayer:
    """A player that the game offers by name; it draws from its own seed."""

    def __init__(self, game: Any, name: str, seed: int | np.random.Generator) -> None:
        """Set up the player.

        Args:
            game: The game itself, unwrapped.
            name: As in the game's `check_opponent`.
            seed: The seed of this episode and seat, or a generator.
        """
        self._game, self._name = game, name
        self._rng = np.random.default_rng(seed)

    def act(self, agent: str, observation: Any) -> str:
        """Return what the game's player does."""
        del observation
        return str(self._game.scripted_action(agent, self._name, self._rng))


class ReadingPlayer:
    """An object that reads the observations as text and answers with text."""

    def __init__(self, player: TextPlayer, rng: np.random.Generator) -> None:
        """Set up the player; its `reset`, if it has one, begins a new game."""
        self._player = player
        begin = getattr(player, "reset", None)
        if begin is not None:
            begin(seed=int(rng.integers(2**31)))

    def act(self, agent: str, observation: Any) -> str:
        """Return its answer."""
        return self._player.act(observation_text(observation))


class RecordedPlayer:
    """Repeats recorded actions."""

    def __init__(self, actions: Sequence[str]) -> None:
        """Set up the player with the record of one game."""
        self._left = list(reversed(actions))

    def act(self, agent: str, observation: Any) -> str:
        """Return the next action.

        Raises:
            InvalidEnvironmentError: The game has more turns than the recorded one.
        """
        del observation
        if not self._left:
            raise InvalidEnvironmentError(f"the recorded actions of agent {agent!r} end before the game does")
        return self._left.pop()


def seat_player(game: Any, agent: str, player: TablePlayer, seed: int) -> SeatedPlayer:
    """Return the player of an agent in one episode.

    Args:
        game: The game itself, unwrapped.
        agent: The agent.
        player: The player drawn by the service.
        seed: Seed for this episode and seat.

    Raises:
        InvalidRequestError: The game has no such player.
    """
    if player.kind == "replay":
        return RecordedPlayer(player.actions)
    if player.kind == "external":
        assert player.external is not None
        return ExternalPlayer(player.external, system_prompt=system_prompt_of(game))
    check_player(game, agent, player)
    return ScriptedPlayer(game, player.name, seed)


def check_player(game: Any, agent: str, player: TablePlayer) -> None:
    """Refuse a player that cannot play in this game.

    Raises:
        InvalidRequestError: The game has no player of this name; `field` names the agent.
    """
    field = f"agents.{agent}"
    check = getattr(game, "check_opponent", None)
    if check is None:
        raise InvalidRequestError(
            f"agent {agent!r} cannot be played by {player.name!r}: {type(game).__name__} offers no players",
            hint="let a policy play it: tg.opponents.Base(), tg.opponents.Frozen(...)",
            field=field,
        )
    try:
        check(player.name)
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"agent {agent!r} cannot be played by {player.name!r}: {error.message}",
            hint=error.hint,
            field=field,
        ) from None


def offered(game: Any) -> list[str]:
    """Return the names of the players that a game offers and that can play in it."""
    check = getattr(game, "check_opponent", None)
    names = list(getattr(getattr(game, "game", game), "opponents", ())) if check is not None else []
    return [name for name in names if _can_play(check, name)]


def _can_play(check: Any, name: str) -> bool:
    try:
        check(name)
    except InvalidRequestError:
        return False
    return True


def acting_failed(agent: str, player: TablePlayer, error: Exception) -> TinkerGymError:
    """Name the seat in an error of its player, which may act during another seat's step."""
    if isinstance(error, NoCompletionError):
        where = origin_of(player.external.url) if player.external is not None else ""
        return OpponentFailedError(
            f"agent {agent!r}, played by {player.name!r} at {where}, did not answer: {error.message}",
            field=f"agents.{agent}",
        )
    return OpponentFailedError(
        f"agent {agent!r}, played by {player.name!r}, could not act: {type(error).__name__}: {error}",
        hint="fix the game's player, or choose another",
        field=f"agents.{agent}",
    )
