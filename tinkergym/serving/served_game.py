"""A game with several seats on an environment server.

On the server it is an ordinary environment, and the game's position is sent in `info`. The client turns that
into a table again, as if the game were local.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from tinkergym.agent.coordinator import Position, Standing
from tinkergym.errors import InvalidRequestError, RemoteAnswerError
from tinkergym.registration.environments import make
from tinkergym.registration.games import is_game, make_game
from tinkergym.rollout.game_table import PLAYERS, TOOLS, GameTable
from tinkergym.rollout.table_players import offered
from tinkergym.schema.episodes import TablePlayer
from tinkergym.spaces import Text
from tinkergym.user_code.quoting import quoted

AGENTS, OFFERED = "agents", "players_offered"
"""Metadata of a served game: its agents, and the players that it offers by name."""
_STANDING = ("agent", "observation", "reward", "terminated", "truncated", "info")


def make_served(environment_id: str, kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Create what a server serves: an environment, or a game with all its seats."""
    if is_game(environment_id):
        settings = dict(kwargs)
        return ServedGame(environment_id, GameTable(make_game(environment_id, **settings)))
    return make(environment_id, **kwargs)


class ServedGame(gym.Env[str, str]):
    """A game's table as the environment of a session."""

    def __init__(self, environment_id: str, table: GameTable) -> None:
        """Serve a table; this environment takes ownership of it."""
        self._table = table
        self.observation_space, self.action_space = Text(), Text()
        self.spec = gym.envs.registration.EnvSpec(environment_id)
        self.metadata = {**table.metadata, AGENTS: list(table.agents), OFFERED: offered(table.unwrapped)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin a game."""
        super().reset(seed=seed)
        options = dict(options or {})
        players = options.pop(PLAYERS, None)
        if players is not None:
            options[PLAYERS] = {
                agent: (TablePlayer(name=name), own_seed) for agent, (name, own_seed) in players.items()
            }
        return "", {"position": _to_json(self._table.reset(seed=seed, options=options or None))}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Let the agent act whose turn it is."""
        position = self._table.step(action)
        return "", 0.0, position.turn is None, False, {"position": _to_json(position)}

    def close(self) -> None:
        """Close the game."""
        self._table.close()


class RemoteTable(GameTable):
    """The client's end of a served game."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Play through a connection.

        Raises:
            RemoteAnswerError: The server's description of the game's agents is invalid.
        """
        self._env = env
        self.metadata = env.metadata
        self._agents = _texts(env.metadata.get(AGENTS), AGENTS)
        self._offered = _texts(env.metadata.get(OFFERED, []), OFFERED)

    @property
    def agents(self) -> tuple[str, ...]:
        """All agents of the game."""
        return self._agents

    @property
    def unwrapped(self) -> Any:
        """What can be asked here about the game: the players that it offers, and its place on the server."""
        return _RemoteGame(self._env, self._offered)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Position:
        """Begin a game there."""
        if options and TOOLS in options:
            raise InvalidRequestError(
                "tools are not supported for a game on a server",
                hint="leave tools out",
                field="agents",
            )
        if options and PLAYERS in options:
            kinds = {agent: player.kind for agent, (player, _) in options[PLAYERS].items()}
            elsewhere = next((agent for agent, kind in kinds.items() if kind == "external"), None)
            if elsewhere is not None:
                raise InvalidRequestError(
                    "external models are not supported in a game on a server",
                    hint="let a policy or one of the game's own players take the seat",
                    field=f"agents.{elsewhere}",
                )
            named = {agent: [player.name, own_seed] for agent, (player, own_seed) in options[PLAYERS].items()}
            options = {**options, PLAYERS: named}
        _, info = self._env.reset(seed=seed, options=options)
        return _read(info)

    def step(self, action: str) -> Position:
        """Let the agent act whose turn it is."""
        return _read(self._env.step(action)[4])

    def close(self) -> None:
        """Free the place."""
        self._env.close()


class _RemoteGame:
    """Represents a remote game where its scripted players are checked and where its episodes end."""

    def __init__(self, env: gym.Env[Any, Any], opponents: tuple[str, ...]) -> None:
        self._env, self.opponents = env, opponents

    def end_episode(self) -> None:
        """Give its place on the server back; the next `reset` takes one."""
        self._env.unwrapped.end_episode()  # type: ignore[attr-defined]

    def check_opponent(self, name: str) -> None:
        if name not in self.opponents:
            raise InvalidRequestError(
                f"the served game has no player {name!r}",
                hint=f"choose one of {', '.join(self.opponents) or 'none'}",
                field="opponent",
            )


def _to_json(position: Position) -> dict[str, Any]:
    turn = position.turn
    return {
        "agents": list(position.agents),
        "ended": [_standing_to_json(one) for one in position.ended],
        "turn": None if turn is None else _standing_to_json(turn),
        "owed": dict(position.owed),
    }


def _standing_to_json(standing: Standing) -> dict[str, Any]:
    return {name: getattr(standing, name) for name in _STANDING}


def _read(info: Mapping[str, Any]) -> Position:
    """Parse a position. Its values are the game's own, and are checked where they are used."""
    found = info.get("position")
    if not isinstance(found, dict) or set(found) != {"agents", "ended", "turn", "owed"}:
        raise RemoteAnswerError(f"the position of a game is invalid: {quoted(found)}")
    ended, turn, owed = found["ended"], found["turn"], found["owed"]
    if not isinstance(ended, list) or not isinstance(owed, dict):
        raise RemoteAnswerError(f"the position of a game is invalid: {quoted(found)}")
    return Position(
        agents=_texts(found["agents"], AGENTS),
        ended=tuple(_standing(one) for one in ended),
        turn=None if turn is None else _standing(turn),
        owed=owed,
    )


def _standing(found: object) -> Standing:
    if not isinstance(found, dict) or set(found) != set(_STANDING) or not isinstance(found["agent"], str):
        raise RemoteAnswerError(f"the state of an agent is invalid: {quoted(found)}")
    return Standing(**found)


def _texts(found: object, name: str) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise RemoteAnswerError(f"{name} of a game must be texts, not {quoted(found)}")
    return tuple(found)
