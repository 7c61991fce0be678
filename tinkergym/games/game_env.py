"""GameEnv: a `TextGame` as a PettingZoo AEC environment."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from pettingzoo import AECEnv

from tinkergym.errors import (
    EpisodeProtocolError,
    IllegalMoveError,
    InvalidEnvironmentError,
    InvalidRequestError,
)
from tinkergym.games.illegal import IllegalPolicy
from tinkergym.games.text_game import Rewards, TextGame
from tinkergym.spaces import Text

_MOST_PLAYERS = 1000


class GameEnv(AECEnv[str, dict[str, str], str]):  # type: ignore[misc] # pettingzoo has no types here
    """One game. Agents are the game's, or `player_0`, `player_1`, ...; an observation is `{"text": ...}`.

    An agent's text contains what is new since its last action: what it was told, and the game's `observe`. It
    stays the same however often it is requested. With it comes the game's `view`, as `info["view"]`. With
    `on_illegal="retry:N"` an agent whose move was illegal acts again.
    """

    def __init__(
        self, game: TextGame, *, on_illegal: str | None = None, render_mode: str | None = None
    ) -> None:
        """Set up the game.

        Args:
            game: The rules. This environment takes ownership of them.
            on_illegal: `lose`, `random` or `retry:N`; by default the game's own rule.
            render_mode: With `ansi`, `render` returns the game as text.

        Raises:
            InvalidRequestError: `on_illegal` is invalid, or needs legal moves that the game does not list.
        """
        super().__init__()
        self.game = game
        self.render_mode = render_mode
        self.on_illegal = game.on_illegal if on_illegal is None else on_illegal
        self._policy = IllegalPolicy.parse(self.on_illegal)
        if self._policy.kind == "random":
            _needs_legal(game, "on_illegal")
        self.possible_agents = _agent_ids(game)
        self.agents: list[str] = []
        self._players = {agent: player for player, agent in enumerate(self.possible_agents)}
        self._observation_spaces = {name: spaces.Dict({"text": Text()}) for name in self.possible_agents}
        self._action_spaces = {name: Text() for name in self.possible_agents}
        self.metadata = {
            "name": type(game).__name__,
            "render_modes": ["ansi"],
            "render_fps": 1,
            "turns": "multi",
            "data": "free",
            "on_illegal": self.on_illegal,
            # An agent that tries again acts before the others have moved.
            "is_parallelizable": game.simultaneous and self._policy.kind != "retry",
            **game.metadata,
        }
        if game.system_prompt:
            self.metadata["system_prompt"] = game.system_prompt
        self._has_views = type(game).view is not TextGame.view
        self._np_random: np.random.Generator | None = None

    def observation_space(self, agent: str) -> spaces.Dict:
        """Return the space of the agent's observations."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> Text:
        """Return the space of the agent's actions."""
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin a game. Without a seed the generator continues."""
        del options
        if seed is not None or self._np_random is None:
            self._np_random = seeding.np_random(seed)[0]
        agents = self.possible_agents
        self.agents = agents[:]
        self.rewards = dict.fromkeys(agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(agents, 0.0)
        self.terminations = dict.fromkeys(agents, False)
        self.truncations = dict.fromkeys(agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in agents}
        self._skip_agent_selection = None
        self._totals = self.game._returns = [0.0] * len(agents)
        self._paid = False
        self._tries = 0
        self._only_news = -1
        self._forfeited: dict[int, str] = {}
        self._closings: dict[int, str] = {}
        self._moves: dict[int, Any] = {}
        self.game.start(self._np_random)
        _require_players(self.game, len(agents))
        self._player = _seat(
            self.game, 0 if self.game.simultaneous else self.game.first_player(), "first_player"
        )
        self.agent_selection = agents[self._player]

    def observe(self, agent: str) -> dict[str, str]:
        """Return what is new for the agent since its last action."""
        player = self._players[agent]
        # Not when it changes: opponents that play by rules look at neither text nor view.
        if self._has_views and agent in self.infos and (view := self.game.view(player)) is not None:
            self.infos[agent]["view"] = view
        news = self.game._news[player]
        if player == self._only_news:
            return {"text": "\n".join(news)}
        shown = self.game.observe(player)
        if not news and not self._closings:
            return {"text": shown}
        parts = [*news, shown, self._closings.get(player, "")]
        return {"text": "\n".join(part for part in parts if part)}

    def step(self, action: str | None) -> None:
        """Let the selected agent act. An agent whose game is over must pass None.

        Raises:
            EpisodeProtocolError: No game is running.
            InvalidRequestError: The action is not text.
        """
        if not self.agents:
            raise EpisodeProtocolError("no game is running", hint="call reset before step")
        agent = self.agent_selection
        if self._is_out(agent):
            self._was_dead_step(action)
            return
        if not isinstance(action, str):
            raise InvalidRequestError(f"an action must be a str, not {type(action).__name__}", field="action")
        game, player = self.game, self._player
        self._cumulative_rewards[agent] = 0.0
        if self._paid:
            self._clear_rewards()
            self._paid = False
        if news := game._news[player]:
            news.clear()
        self._only_news = -1
        # A new one each time: its user may have kept that of the turn before.
        self.infos[agent] = {} if self._policy.kind == "lose" else {"metrics": {"illegal_moves": 0.0}}
        try:
            move = game.read(player, action)
            outcome = None if game.simultaneous else game.play(player, move)
        except IllegalMoveError as error:
            move, outcome = self._illegal(player, error.message)
            if self._only_news == player:
                return
        self._tries = 0
        if game.simultaneous:
            outcome = self._collect(move)
        if game._gifts is not None:
            self._pay(game._gifts)
            game._gifts = None
        self._settle(player, outcome)

    def legal_actions(self, agent: str) -> list[str] | None:
        """Return the agent's legal actions; None if the game cannot list them."""
        return self.game.legal(self._players[agent])

    def is_legal(self, agent: str, action: str) -> bool:
        """Return whether the game can read the action as a move."""
        try:
            self.game.read(self._players[agent], action)
        except IllegalMoveError:
            return False
        return True

    def gold_action(self, agent: str) -> str | None:
        """Return the agent's best action; None if it is unknown."""
        return self.game.gold(self._players[agent])

    def check_opponent(self, name: str) -> None:
        """Refuse a name that the game's `opponents` does not list.

        Raises:
            InvalidRequestError: It is not listed, or `random` has no legal moves to choose from.
        """
        _require_listed(self.game, name)
        if name == "random":
            _needs_legal(self.game, "opponent")

    def scripted_action(self, agent: str, name: str, rng: np.random.Generator) -> str:
        """Return the action of a named opponent for this agent; it draws from `rng`."""
        player = self._players[agent]
        if name != "random":
            return str(getattr(self.game, name)(player, rng))
        return _random_move(self.game, player, rng)

    def render(self) -> str | None:
        """Return the game as readable text, if the render mode is `ansi`."""
        return self.game.render() if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the environment; there is nothing to release."""

    def _is_out(self, agent: str) -> bool:
        return self.terminations[agent] or self.truncations[agent]

    def _settle(self, player: int, outcome: Rewards | None) -> None:
        """Mark players whose game is over, and select who acts next."""
        game = self.game
        if self._forfeited and not (game.simultaneous and self._moves):
            outcome = game.forfeit(self._forfeited)
        elif outcome is None and len(game.eliminated) == len(self.possible_agents):
            outcome = [0.0] * len(self.possible_agents)
        game._is_over = outcome is not None
        if outcome is not None:
            self._finish(game.payoff(outcome, player))
        else:
            for gone in game.eliminated - self._closings.keys():
                self._end(gone)
        self._player = self._after(player, over=outcome is not None)
        self.agent_selection = self.possible_agents[self._player]
        # PettingZoo's convention: an agent that is out is selected at once, to pass None.
        if game.eliminated and outcome is None:
            self._deads_step_first()

    def _after(self, player: int, *, over: bool) -> int:
        count, game = len(self.possible_agents), self.game
        # Also in order at the end, when every agent has its final turn.
        in_a_row = over or game.simultaneous
        out = {gone for gone in game.eliminated if not over or self.possible_agents[gone] not in self.agents}
        for _ in range(count):
            player = (
                (player + 1) % count if in_a_row else _seat(game, game.next_player(player), "next_player")
            )
            if player not in out:
                return player
        raise InvalidEnvironmentError(
            f"{type(game).__name__}.next_player only returns eliminated players",
            hint="return a player who is not in self.eliminated",
            field="environment",
        )

    def _collect(self, move: Any) -> Rewards | None:
        self._moves[self._player] = move
        players = range(len(self.possible_agents))
        if any(player not in self._moves and player not in self.game.eliminated for player in players):
            return None
        moves, self._moves = [self._moves.get(player) for player in players], {}
        return None if self._forfeited else self.game.play_round(moves)

    def _illegal(self, player: int, reason: str) -> tuple[Any, Rewards | None]:
        """Return the move that replaces an illegal one and its outcome, as `on_illegal` says."""
        policy, game = self._policy, self.game
        if policy.kind != "lose":
            self.infos[self.possible_agents[player]] = {"metrics": {"illegal_moves": 1.0}}
        if policy.kind == "random":
            assert self._np_random is not None
            action = _random_move(self.game, player, self._np_random)
            game.tell(f"Illegal move: {reason}. {action} was played instead.", player)
            move = game.read(player, action)
            return move, None if game.simultaneous else game.play(player, move)
        if policy.kind == "retry" and self._tries < policy.retries:
            self._tries += 1
            left = policy.retries - self._tries
            game.tell(f"Illegal move: {reason}. Try again{'' if left else ', for the last time'}.", player)
            # The player has seen everything that the game shows.
            self._only_news = player
            return None, None
        self._forfeited[player] = reason
        return None, None

    def _pay(self, rewards: list[float]) -> None:
        for player, agent in enumerate(self.possible_agents):
            if agent in self.rewards:
                self.rewards[agent] += rewards[player]
                self._cumulative_rewards[agent] += rewards[player]
                self._totals[player] += rewards[player]
            elif rewards[player]:
                raise InvalidEnvironmentError(
                    f"{type(self.game).__name__} paid {rewards[player]!r} to the eliminated player {player}",
                    hint="pay it with eliminate(player, reward)",
                    field="environment",
                )
        self._paid = True

    def _finish(self, rewards: list[float]) -> None:
        self._pay(rewards)
        for player, agent in enumerate(self.possible_agents):
            if agent in self.agents:
                self._end(player)

    def _end(self, player: int) -> None:
        """End the game for one player."""
        agent, total = self.possible_agents[player], self._totals[player]
        cut_off = self.game._cut_off and player not in self.game.eliminated
        (self.truncations if cut_off else self.terminations)[agent] = True
        self._closings[player] = _closing(self.game, player, total, self._forfeited)
        self.infos[agent] = {
            **self.infos[agent],
            "metrics": {
                **self.infos[agent].get("metrics", {}),
                **self.game.metrics(player, total),
                "illegal_move": float(player in self._forfeited),
            },
        }


def _agent_ids(game: TextGame) -> list[str]:
    count = _count_players(game)
    agents = list(game.agents) or [f"player_{player}" for player in range(count)]
    if len(agents) != count or len(set(agents)) != count or not all(agents):
        raise InvalidEnvironmentError(
            f"{type(game).__name__} has {count} players, but the agents {agents!r:.200}",
            hint="`agents` must have a different id for each player",
            field="environment",
        )
    return agents


def _count_players(game: TextGame) -> int:
    players = game.players
    names = players if isinstance(players, Sequence) and not isinstance(players, str) else ()
    count = players if isinstance(players, int) else len(names)
    if not 0 < count <= _MOST_PLAYERS:
        raise InvalidEnvironmentError(
            f"{type(game).__name__} has the invalid number of players {players!r:.100}",
            hint=f"`players` must be a number from 1 to {_MOST_PLAYERS}, or a list of names",
            field="environment",
        )
    return len(game.player_names)


def _require_players(game: TextGame, count: int) -> None:
    if len(game.player_names) != count:
        raise InvalidEnvironmentError(
            f"{type(game).__name__} has {len(game.player_names)} players, but had {count} when its "
            "environment was created",
            hint="set `players` in the class or in __init__",
            field="environment",
        )


def _closing(game: TextGame, player: int, total: float, forfeited: dict[int, str]) -> str:
    """Return the last text that a player sees: the verdict, after the illegal moves that ended the game."""
    verdict = game.verdict(player, total)
    if player in forfeited:
        return f"Illegal move: {forfeited[player]}. {verdict}"
    if forfeited:
        names = " and ".join(game.player_names[loser] for loser in forfeited)
        return f"Illegal move by {names}. {verdict}"
    return verdict


def _seat(game: TextGame, player: Any, method: str) -> int:
    count = len(game.player_names)
    if player not in range(count):
        raise InvalidEnvironmentError(
            f"{type(game).__name__}.{method} returned {player!r}",
            hint=f"return the number of a player, 0 to {count - 1}",
            field="environment",
        )
    return int(player)


def _random_move(game: TextGame, player: int, rng: np.random.Generator) -> str:
    legal = game.legal(player)
    if not legal:
        raise InvalidRequestError(
            f"{type(game).__name__}.legal({player}) lists no moves to choose from",
            hint="return the legal moves as long as the game continues",
            field="opponent",
        )
    return legal[int(rng.integers(len(legal)))]


def _needs_legal(game: TextGame, field: str) -> None:
    if type(game).legal is TextGame.legal:
        raise InvalidRequestError(
            f"'random' needs the legal moves of {type(game).__name__}",
            hint="define legal(player), or choose another value",
            field=field,
        )


def _require_listed(game: TextGame, name: str) -> None:
    if name not in game.opponents:
        close = difflib.get_close_matches(name, game.opponents, n=1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise InvalidRequestError(
            f"{name!r} is not an opponent",
            hint=f"{meant}choose one of {', '.join(game.opponents)}",
            field="opponent",
        )
