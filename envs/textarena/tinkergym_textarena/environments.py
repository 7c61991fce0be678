"""TextArena's games as environments: for one player, or against an opponent played by the environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.spaces import Text
from tinkergym_textarena.games import WITHOUT_CHANCE, name_of
from tinkergym_textarena.legal import legal_moves, need_moves, random_move
from tinkergym_textarena.native import NativeGame, game_spec

StepReturn = tuple[str, float, bool, bool, dict[str, Any]]
_MOST_SEED = 2**31


class SingleEnv(gym.Env[str, str]):
    """A game for one player. The reward comes with the last step, as in TextArena."""

    metadata: dict[str, Any] = {"render_modes": [], "turns": "multi", "data": "free"}  # noqa: RUF012 - Gymnasium declares it so
    players = 1

    def __init__(
        self,
        game: str,
        *,
        variant: str = "",
        echo: bool = False,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        """Create the game.

        Args:
            game: Its id in TextArena, such as `Mastermind-v0`.
            variant: The end of another version's id, such as `hard` for `Mastermind-v0-hard`.
            echo: Repeat the player's own actions, as TextArena does.
            render_mode: None.
            settings: Arguments of TextArena's game, such as `max_turns`.

        Raises:
            InvalidEnvironmentError: TextArena has no such game, or it cannot be played here; the error says
                why.
        """
        self.render_mode = render_mode
        self.observation_space, self.action_space = Text(), Text()
        self.game_id = f"{game}-{variant}" if variant else game
        self._echo = echo
        self._settings = settings
        game_spec(self.game_id)
        if name_of(self.game_id) in WITHOUT_CHANCE:
            self.metadata = {**self.metadata, "deterministic": True}
        self._game: NativeGame | None = None
        self._playing = False
        self._seat = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start a game with TextArena's randomness for this seed."""
        super().reset(seed=seed)
        game_seed = int(self.np_random.integers(_MOST_SEED)) if seed is None else seed
        self._game = NativeGame(self.game_id, self.players, game_seed, self._settings)
        self._playing = True
        self._begin()
        return self._game.news(self._seat, echo=self._echo), {}

    def step(self, action: str) -> StepReturn:
        """Act, and let the others act until it is this player's turn again.

        `info["metrics"]["illegal_moves"]` is 1 if the game refused the action. When the game is over,
        `info["reason"]` is TextArena's reason, and `info["game"]` everything it reports about this player.

        Raises:
            EpisodeProtocolError: No episode is running.
            InvalidRewardError: The game ended without a reward.
            EnvironmentInfrastructureError: The game failed.
        """
        if self._game is None or not self._playing:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        legal = True
        # An opponent with illegal first moves may have lost during reset, which cannot report it.
        if not self._game.over:
            legal = self._game.act(action)
            self._others_act()
        metrics = {"illegal_moves": float(not legal)}
        if not self._game.over:
            return self._game.news(self._seat, echo=self._echo), 0.0, False, False, {"metrics": metrics}
        self._playing = False
        reward, facts = self._game.rewards[self._seat], self._game.facts(self._seat)
        info = {"metrics": {**metrics, **self._verdict(reward)}, "reason": facts.get("reason"), "game": facts}
        return self._game.news(self._seat, echo=self._echo), reward, True, False, info

    def legal_actions(self) -> list[str] | None:
        """Return the actions that the game accepts now; None if there are too many to list.

        If they are not known exactly, each candidate is tried on a copy of the game.
        """
        return None if self._game is None or self._game.over else legal_moves(self._game)

    def _begin(self) -> None:
        """Do what comes between the game's reset and the first observation."""

    def _others_act(self) -> None:
        """Do what comes between an action and the next observation."""

    def _verdict(self, reward: float) -> dict[str, float]:
        del reward
        return {}


class VersusEnv(SingleEnv):
    """A game for two, against an opponent: 1 for a win, 0 for a draw, -1 for a loss."""

    players = 2

    def __init__(
        self,
        game: str,
        *,
        opponent: str | Sequence[str] = "random",
        seat: int | None = None,
        **settings: Any,
    ) -> None:
        """Create the game and the opponent.

        Args:
            game: Its id in TextArena, such as `TicTacToe-v0`.
            opponent: `random` plays random legal moves in games whose moves are known; a list of texts is
                played in order, repeatedly.
            seat: The policy's player, 0 or 1; drawn by the seed if None.
            settings: See `SingleEnv`.

        Raises:
            InvalidEnvironmentError: TextArena has no such game, or it cannot be played here; the error says
                why.
            InvalidRequestError: The opponent or the seat is invalid.
        """
        super().__init__(game, **settings)
        if seat not in (None, 0, 1):
            raise InvalidRequestError(f"must be 0, 1 or None, not {seat!r}", field="seat")
        self._chosen_seat = seat
        self._said = 0
        self._lines: list[str] = []
        self._answer: Callable[[str], str] | None = None
        if opponent == "random":
            need_moves(self.game_id)
        elif isinstance(opponent, str) or not opponent or not all(isinstance(x, str) for x in opponent):
            raise InvalidRequestError(
                f"{opponent!r} is not an opponent", hint="give 'random', or a list of texts", field="opponent"
            )
        else:
            self._lines = list(opponent)

    def seat_opponent(self, answer: Callable[[str], str]) -> None:
        """Use another player for the other side, from the next move on.

        Args:
            answer: Receives what is new for the other player, and returns an action.
        """
        self._answer = answer

    def _begin(self) -> None:
        drawn = int(self.np_random.integers(2))
        self._seat = drawn if self._chosen_seat is None else self._chosen_seat
        self._said = 0
        self._others_act()

    def _others_act(self) -> None:
        game = self._game
        assert game is not None
        while not game.over and game.player != self._seat:
            game.act(self._opponents_action(game))

    def _opponents_action(self, game: NativeGame) -> str:
        if self._answer is not None:
            return self._answer(game.news(game.player, echo=self._echo))
        if self._lines:
            self._said += 1
            return self._lines[(self._said - 1) % len(self._lines)]
        return random_move(game, self.np_random)

    def _verdict(self, reward: float) -> dict[str, float]:
        return {"won": float(reward > 0), "drawn": float(reward == 0), "lost": float(reward < 0)}
