"""TextGame: the rules of a game in about ten lines.

Independent of PettingZoo, Gymnasium, opponents and policies: `GameEnv` makes an AEC environment of it, and
`AgainstOpponent` makes that a Gymnasium environment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import isclose, isfinite
from typing import Any, ClassVar, Literal

import numpy as np

from tinkergym.errors import IllegalMoveError, InvalidEnvironmentError, InvalidRewardError
from tinkergym.games.illegal import quoted_action, read_legal
from tinkergym.user_code.returned_values import finite_number

Rewards = float | Sequence[float]
"""The rewards of a finished game: a number per player, or one number for the player who moved; in a game for
two, the other player gets its negative."""

_MOST_LISTED = 20


class TextGame:
    """The rules of a game whose players read and write text.

    Players are numbered from 0. Take all randomness from the generator passed to `begin`; keep it if the game
    needs it later.

    Examples:
        >>> class Nim(TextGame):
        ...     def begin(self, rng):
        ...         self.left = int(rng.integers(8, 16))
        ...
        ...     def observe(self, player):
        ...         return f"{self.left} stones. Take 1, 2 or 3; whoever takes the last one wins."
        ...
        ...     def legal(self, player):
        ...         return ["1", "2", "3"][: self.left]
        ...
        ...     def play(self, player, move):
        ...         self.left -= int(move)
        ...         return 1.0 if self.left == 0 else None
    """

    players: int | Sequence[str] = 2
    """The number of players, or their names in the text."""
    agents: Sequence[str] = ()
    """The agent ids of the players, in PettingZoo and in a job; `player_0` and so on by default."""
    simultaneous: bool = False
    """All players move at once, without seeing the others' moves: define `play_round` instead of `play`."""
    opponents: Sequence[str] = ("random",)
    """The opponents available by name: `random`, and methods `(player, rng) -> action` of this class."""
    on_illegal: str = "lose"
    """How an illegal move is handled unless a setting overrides it: `lose`, `random` or `retry:N`."""
    system_prompt: str = ""
    """Precedes the first observation unless the job sets a system prompt."""
    metadata: ClassVar[dict[str, Any]] = {}
    """JSON values for the environments' metadata."""

    _news: list[list[str]]
    _gifts: list[float] | None = None
    _eliminated: frozenset[int] = frozenset()
    _cut_off: bool = False
    _returns: Sequence[float] = ()
    """Of all players so far; `GameEnv` keeps them."""
    _is_over: bool = False
    """For all players."""

    # --- the rules: what a game defines ---------------------------------------------------------------------

    def begin(self, rng: np.random.Generator) -> None:
        """Set up a new game."""

    def observe(self, player: int) -> str:
        """Return what the player sees on their turn and at the end; empty for nothing.

        Must not change anything: it may be called at any time. Announce events with `tell`.
        """
        del player
        return ""

    def legal(self, player: int) -> list[str] | None:
        """Return all legal moves of the player; None if they cannot be listed."""
        del player
        return None

    def read(self, player: int, action: str) -> Any:
        """Parse an action into a move for `play`; by default one of `legal`.

        Raises:
            IllegalMoveError: It is not a legal move.
        """
        legal = self.legal(player)
        if legal is None:
            return action.strip()
        move = read_legal(action, legal)
        if move is None:
            choices = ", ".join(legal) if len(legal) <= _MOST_LISTED else "the legal moves"
            raise IllegalMoveError(f"{quoted_action(action)} is not one of {choices}")
        return move

    def play(self, player: int, move: Any) -> Rewards | None:
        """Make the move. Return the rewards if the game is over, None if it continues.

        Raises:
            IllegalMoveError: The rules do not allow it. Raise it before changing anything.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method play(player, move)")

    def play_round(self, moves: list[Any]) -> Rewards | None:
        """Make the moves of all players in a simultaneous game. Returns the same as `play`.

        A player who was eliminated has the move None.
        """
        raise NotImplementedError(f"{type(self).__name__} is simultaneous and needs play_round(moves)")

    # --- what a game may want to say differently ------------------------------------------------------------

    def opening(self, player: int) -> str:
        """Return the text above the player's first observation: who they are, if players have names."""
        return "" if isinstance(self.players, int) else f"You are {self.players[player]}."

    def verdict(self, player: int, total: float) -> str:
        """Return the text below the player's last observation, for human readers: policies do not see it.

        Args:
            player: The player who reads it.
            total: The player's return.
        """
        if self._is_out_early(player) and total <= 0:
            return "You are out."
        return {"won": "You win.", "drawn": "Draw.", "lost": "You lose."}[self._outcome(player, total)]

    def metrics(self, player: int, total: float) -> dict[str, float]:
        """Return metrics for the player's last `info["metrics"]`; the arguments are those of `verdict`.

        By default a player who earned the most has won, and one who is eliminated while others play on has
        lost unless they earned something.
        """
        outcome = self._outcome(player, total)
        names = ("won", "drawn", "lost") if len(self.player_names) > 1 else ("won",)
        return {name: float(name == outcome) for name in names}

    def forfeit(self, losers: Collection[int]) -> Sequence[float]:
        """Return the rewards if players lose by illegal moves: -1 for them; the others share the sum."""
        count = len(self.player_names)
        playing = count - len(self._eliminated)
        if len(losers) == playing > 1:
            return [0.0] * count
        share = len(losers) / max(1, playing - len(losers))
        others = [0.0 if player in self._eliminated else share for player in range(count)]
        return [-1.0 if player in losers else others[player] for player in range(count)]

    def first_player(self) -> int:
        """Return who moves first, once the game has begun."""
        return 0

    def next_player(self, player: int) -> int:
        """Return who moves after `player`."""
        count = self.players if isinstance(self.players, int) else len(self.players)
        return (player + 1) % count

    def gold(self, player: int) -> str | None:
        """Return the player's best action; None if it is unknown. Must not change anything."""
        del player
        return None

    def view(self, player: int) -> dict[str, Any] | None:
        """Return what people who watch the player see, as `info["view"]`; None for the text alone.

        One of the kinds in `tinkergym.trajectory.turn_views`: `{"kind": "board", "rows": ["X.O", ...]}`. It
        should contain what the player knows. Called whenever the player observes; must not change anything.
        """
        del player
        return None

    def render(self) -> str:
        """Return the game as readable text."""
        shown = (self.observe(player) for player in range(len(self.player_names)))
        return "\n".join(dict.fromkeys(text for text in shown if text))

    # --- what a game calls ----------------------------------------------------------------------------------

    def tell(self, text: str, *players: int) -> None:
        """Add a text to the next observation of these players, or of all if none is given."""
        for player in players or range(len(self._news)):
            self._news[player].append(text)

    def give(self, player: int, reward: float) -> None:
        """Pay a reward in the middle of the game.

        Raises:
            InvalidEnvironmentError: There is no such player, or they were eliminated.
            InvalidRewardError: The reward is not a finite number.
        """
        self._check_player(player, "give")
        if self._gifts is None:
            self._gifts = [0.0] * len(self._news)
        self._gifts[player] += self._number(reward)

    def eliminate(self, player: int, reward: float = 0.0) -> None:
        """End the game for one player; the others continue. When no players are left, the game is over.

        Args:
            player: Gets no more turns and no rewards after this move.
            reward: Their reward now.
        """
        self.give(player, reward)
        self._eliminated |= {player}

    def truncate(self) -> None:
        """Mark the game as cut off by a limit. Call it in the `play` that returns the rewards."""
        self._cut_off = True

    @property
    def eliminated(self) -> AbstractSet[int]:
        """The players whose game is over."""
        return self._eliminated

    @property
    def player_names(self) -> Sequence[str]:
        """The players' names in the text."""
        if isinstance(self.players, int):
            return [f"player_{player}" for player in range(self.players)]
        return self.players

    def _is_out_early(self, player: int) -> bool:
        return player in self._eliminated and not self._is_over

    def _outcome(self, player: int, total: float) -> Literal["won", "drawn", "lost"]:
        """Return how the game ended for a player, by the returns of all of them.

        A reward of 0 is a draw only if the others have earned the same. If all have, its sign decides, as for
        a single player.
        """
        if self._is_out_early(player):
            return "won" if total > 0 else "lost"
        others = [paid for other, paid in enumerate(self._returns) if other != player]
        if not all(isclose(paid, total, abs_tol=1e-9) for paid in others):
            best = max(others)
            return "won" if total > best or isclose(total, best, abs_tol=1e-9) else "lost"
        return "won" if total > 0 else "lost" if total < 0 or not others else "drawn"

    # --- for GameEnv ----------------------------------------------------------------------------------------

    def start(self, rng: np.random.Generator) -> None:
        """Begin, with the openings as the first text."""
        self._news = [[] for _ in self.player_names]
        self._gifts = None
        self._eliminated, self._cut_off, self._is_over = frozenset(), False, False
        self.begin(rng)
        if len(self._news) != len(self.player_names):
            raise InvalidEnvironmentError(
                f"{type(self).__name__} has {len(self.player_names)} players after begin, but had "
                f"{len(self._news)} before",
                hint="set `players` in the class or in __init__",
                field="environment",
            )
        for player, news in enumerate(self._news):
            if opening := self.opening(player):
                news.insert(0, opening)

    def payoff(self, outcome: Rewards, player: int) -> list[float]:
        """Return each player's reward in a finished game.

        Raises:
            InvalidEnvironmentError: There are not as many numbers as players.
            InvalidRewardError: A number is not finite.
        """
        count = len(self.player_names)
        if isinstance(outcome, Mapping | AbstractSet | str | bytes):
            # A mapping would pay by its keys, and a set in any order.
            raise self._wrong(outcome, f"a list of {count} numbers")
        try:
            if np.ndim(outcome) == 0:
                if count > 2 or (self.simultaneous and count > 1):
                    raise self._wrong(outcome, f"a number for each of the {count} players")
                paid = [-float(outcome)] * count  # type: ignore[arg-type] # what has no dimension is a number
                paid[player] = float(outcome)  # type: ignore[arg-type] # as above
            else:
                paid = [float(reward) for reward in outcome]  # type: ignore[union-attr] # as above
        except (TypeError, ValueError) as error:
            raise self._wrong(outcome, f"{count} numbers") from error
        if len(paid) != count:
            raise self._wrong(outcome, f"{count} numbers")
        if not all(map(isfinite, paid)):
            raise InvalidRewardError(f"{type(self).__name__} ended with the rewards {outcome!r}")
        return paid

    def _check_player(self, player: int, method: str) -> None:
        known = player in range(len(self._news))
        if not known or player in self._eliminated:
            why = "was already eliminated" if known else "does not exist"
            raise InvalidEnvironmentError(
                f"{type(self).__name__} called {method} for player {player!r}, which {why}",
                hint=f"players are numbered 0 to {len(self._news) - 1}",
                field="environment",
            )

    def _number(self, reward: object) -> float:
        try:
            return finite_number(reward)
        except ValueError as error:
            raise InvalidRewardError(
                f"{type(self).__name__} paid {error}", hint="pay a finite number", field="environment"
            ) from None

    def _wrong(self, outcome: object, wanted: str) -> InvalidEnvironmentError:
        return InvalidEnvironmentError(
            f"{type(self).__name__} ended with the rewards {outcome!r}",
            hint=f"return {wanted}, or None while the game goes on",
            field="environment",
        )
