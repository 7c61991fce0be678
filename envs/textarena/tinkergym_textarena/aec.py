"""TextArena's games as PettingZoo AEC environments: every seat is played from outside."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from pettingzoo import AECEnv

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.spaces import Text
from tinkergym_textarena.legal import legal_moves, need_moves, random_move
from tinkergym_textarena.native import NativeGame, game_spec

_MOST_SEED = 2**31


class ArenaGame(AECEnv[str, dict[str, str], str]):  # type: ignore[misc] # pettingzoo has no types here
    """One game. Agents are `player_0`, `player_1`, ...; an observation is `{"text": ...}`.

    An agent's text is what TextArena has told it since its last action, and stays the same until then.
    TextArena decides who is next and what an illegal action causes: most games ask once more.
    """

    opponents = ("random",)

    def __init__(
        self,
        game: str,
        *,
        players: int = 2,
        variant: str = "",
        echo: bool = False,
        on_illegal: str | None = None,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        """Create the game.

        Args:
            game: Its id in TextArena, such as `TicTacToe-v0`.
            players: Number of players, if the game allows several, such as `LiarsDice-v0`.
            variant: The end of another version's id, such as `large` for `Nim-v0-large`.
            echo: Repeat the players' own actions, as TextArena does.
            on_illegal: Must be None: the games have their own rules.
            render_mode: None.
            settings: Arguments of TextArena's game.

        Raises:
            InvalidEnvironmentError: TextArena has no such game, or it cannot be played here; the error says
                why.
            InvalidRequestError: `players` is below 2, or there is an `on_illegal`.
        """
        super().__init__()
        if players < 2:
            raise InvalidRequestError(
                f"must be at least 2, not {players!r}",
                hint="use tinkergym.make for games for one player",
                field="players",
            )
        if on_illegal is not None:
            raise InvalidRequestError(
                f"{on_illegal!r} would have no effect: TextArena's games have their own rules",
                hint="leave it out",
                field="on_illegal",
            )
        self.render_mode = render_mode
        self.game_id = f"{game}-{variant}" if variant else game
        game_spec(self.game_id)
        self._echo, self._settings = echo, settings
        self.possible_agents = [f"player_{player}" for player in range(players)]
        self.agents: list[str] = []
        self._players = {agent: player for player, agent in enumerate(self.possible_agents)}
        self._observation_spaces = {agent: spaces.Dict({"text": Text()}) for agent in self.possible_agents}
        self._action_spaces = {agent: Text() for agent in self.possible_agents}
        self.metadata = {
            "name": self.game_id,
            "render_modes": [],
            "turns": "multi",
            "data": "free",
            "on_illegal": "textarena",
            "is_parallelizable": False,
        }
        self._game: NativeGame | None = None
        self._np_random: np.random.Generator | None = None

    def observation_space(self, agent: str) -> spaces.Dict:
        """Return the space of the agent's observations."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> Text:
        """Return the space of the agent's actions."""
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin a game with TextArena's randomness for this seed; without one the random state continues."""
        del options
        if seed is not None or self._np_random is None:
            self._np_random = seeding.np_random(seed)[0]
        game_seed = int(self._np_random.integers(_MOST_SEED)) if seed is None else seed
        self._game = NativeGame(self.game_id, len(self.possible_agents), game_seed, self._settings)
        self.agents = self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._skip_agent_selection = None
        self._news: list[list[str]] = [[] for _ in self.agents]
        self._listen(self._game)
        self.agent_selection = self.possible_agents[self._game.player]

    def observe(self, agent: str) -> dict[str, str]:
        """Return what is new for the agent since its last action."""
        return {"text": "\n".join(self._news[self._players[agent]])}

    def step(self, action: str | None) -> None:
        """Let the selected agent act; one whose game is over takes None.

        Raises:
            EpisodeProtocolError: No game is running.
            InvalidRequestError: The action is not a text.
            InvalidRewardError: The game ended without a reward.
            EnvironmentInfrastructureError: The game failed.
        """
        game, agents = self._game, self.possible_agents
        if game is None or not self.agents:
            raise EpisodeProtocolError("no game is running", hint="call reset before step")
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        if not isinstance(action, str):
            raise InvalidRequestError(f"an action must be a str, not {type(action).__name__}", field="action")
        player = self._players[agent]
        self._news[player].clear()
        self._cumulative_rewards[agent] = 0.0
        legal = game.act(action)
        self._listen(game)
        self.infos[agent] = {"metrics": {"illegal_moves": float(not legal)}}
        if game.over:
            self._finish(game)
        # In sequence at the end, when every agent is asked once more.
        self.agent_selection = agents[(player + 1) % len(agents) if game.over else game.player]

    def legal_actions(self, agent: str) -> list[str] | None:
        """Return the agent's legal actions now; None if there are too many to list."""
        game = self._running(agent)
        return legal_moves(game) if game is not None else []

    def is_legal(self, agent: str, action: str) -> bool:
        """Return whether the game would accept the action now, found by trying it on a copy."""
        game = self._running(agent)
        return game is not None and bool(list(game.legal([action])))

    def check_opponent(self, name: str) -> None:
        """Raise an error for a name that `opponents` does not list.

        Raises:
            InvalidRequestError: It does not, or the game's moves are unknown.
        """
        if name not in self.opponents:
            known = ", ".join(self.opponents)
            raise InvalidRequestError(
                f"{name!r} is not an opponent", hint=f"choose one of {known}", field="opponent"
            )
        need_moves(self.game_id)

    def scripted_action(self, agent: str, name: str, rng: np.random.Generator) -> str:
        """Return the named opponent's action in the agent's seat; its randomness comes from `rng`."""
        self.check_opponent(name)
        game = self._running(agent)
        return random_move(game, rng) if game is not None else ""

    def render(self) -> None:
        """Draw nothing: a game consists of text."""

    def close(self) -> None:
        """Close; there is nothing to release."""

    def _listen(self, game: NativeGame) -> None:
        for player, news in enumerate(self._news):
            if said := game.news(player, echo=self._echo):
                news.append(said)

    def _running(self, agent: str) -> NativeGame | None:
        """Return the game if it is the agent's turn."""
        game = self._game
        mine = game is not None and not game.over and game.player == self._players[agent]
        return game if mine else None

    def _finish(self, game: NativeGame) -> None:
        rewards = game.rewards
        for player, agent in enumerate(self.possible_agents):
            reward, facts = rewards[player], game.facts(player)
            self.rewards[agent] = self._cumulative_rewards[agent] = reward
            self.terminations[agent] = True
            verdict = {"won": reward > 0, "drawn": reward == 0, "lost": reward < 0}
            metrics = {
                **self.infos[agent].get("metrics", {}),
                **{key: float(value) for key, value in verdict.items()},
                # Ratings exclude games decided by an illegal move.
                "illegal_move": float(bool(facts.get("invalid_move"))),
            }
            self.infos[agent] = {"metrics": metrics, "reason": facts.get("reason"), "game": facts}
