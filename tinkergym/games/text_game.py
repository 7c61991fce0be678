"""TextGame: the rules of a game in about ten lines.

Knows nothing of PettingZoo, Gymnasium, opponents or policies: `GameEnv` makes an AEC environment of it, and
`AgainstOpponent` makes that a Gymnasium environment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import isfinite
from typing import Any, ClassVar

import numpy as np

from tinkergym.errors import IllegalMoveError, InvalidEnvironmentError, InvalidRewardError
from tinkergym.games.illegal import quoted_action, read_legal
from tinkergym.user_code.scalars import finite_number

Rewards = float | Sequence[float]
"""What a finished game pays: a number per player; or one number for the player who moved, whose single
opponent, if there is one, gets its negative."""

_MOST_LISTED = 20


class TextGame:
    """The rules of a game whose players read and write text.

    A player is a number from 0. All randomness comes from the generator that `begin` is given; keep it if the
    game needs chance later.

    Examples:
        >>> class Nim(TextGame):
        ...     def begin(self, rng):
        ...         self.left = int(rng.integers(8, 16))
        ...
        ...     def observe(self, player):
        ...         return f"{self.left} stones. Take 1, 2 or 3; who takes the last one wins."
        ...
        ...     def legal(self, player):
        ...         return ["1", "2", "3"][: self.left]
        ...
        ...     def play(self, player, move):
        ...         self.left -= int(move)
        ...         return 1.0 if self.left == 0 else None
    """

    players: int | Sequence[str] = 2
    """How many, or what they are called in the text."""
    agents: Sequence[str] = ()
    """The agent ids of the players, in PettingZoo and in a job; `player_0` and so on by default."""
    simultaneous: bool = False
    """All players move at once and unseen by each other: define `play_round` instead of `play`."""
    opponents: Sequence[str] = ("random",)
    """Who can be played against by name: `random`, and methods `(player, rng) -> action` of this class."""
    on_illegal: str = "lose"
    """What becomes of an illegal move unless a setting says otherwise: `lose`, `random` or `retry:N`."""
    system_prompt: str = ""
    """Stands before the first observation unless a job brings its own."""
    metadata: ClassVar[dict[str, Any]] = {}
    """JSON values for the environments' metadata."""

    _news: list[list[str]]
    _gifts: list[float] | None = None
    _eliminated: frozenset[int] = frozenset()
    _cut_off: bool = False

    # --- the rules: what a game defines ---------------------------------------------------------------------

    def begin(self, rng: np.random.Generator) -> None:
        """Set up a new game."""

    def observe(self, player: int) -> str:
        """Return what the player is shown when it is their turn and at the end; empty for nothing.

        Must only look: it is called whenever somebody asks. What happened once belongs into `tell`.
        """
        del player
        return ""

    def legal(self, player: int) -> list[str] | None:
        """Return all legal moves of the player now, None if they cannot be listed."""
        del player
        return None

    def read(self, player: int, action: str) -> Any:
        """Return the move that an action names, as `play` wants it; by default a text from `legal`.

        Raises:
            IllegalMoveError: It names none.
        """
        legal = self.legal(player)
        if legal is None:
            return action.strip()
        move = read_legal(action, legal)
        if move is None:
            choices = ", ".join(legal) if len(legal) <= _MOST_LISTED else "the legal moves"
            raise IllegalMoveError(f"{quoted_action(action)} is none of {choices}")
        return move

    def play(self, player: int, move: Any) -> Rewards | None:
        """Make the move. Return the rewards if the game is over, None if it goes on.

        Raises:
            IllegalMoveError: The rules do not allow it; nothing may have changed yet.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method play(player, move)")

    def play_round(self, moves: list[Any]) -> Rewards | None:
        """Make the moves of all players at once, in a simultaneous game. Returns what `play` does.

        A player who was eliminated has the move None.
        """
        raise NotImplementedError(f"{type(self).__name__} is simultaneous and needs play_round(moves)")

    # --- what a game may want to say differently ------------------------------------------------------------

    def opening(self, player: int) -> str:
        """Return what stands above the player's first observation: who they are, if players have names."""
        return "" if isinstance(self.players, int) else f"You are {self.players[player]}."

    def verdict(self, player: int, total: float) -> str:
        """Return what stands below the player's last observation, for people: no policy sees it.

        Args:
            player: Who reads it.
            total: All that the player earned in the game.
        """
        if len(self.player_names) > 1 and total == 0:
            return "Draw."
        return "You win." if total > 0 else "You lose."

    def metrics(self, player: int, total: float) -> dict[str, float]:
        """Return named numbers for the player's last `info["metrics"]`; the arguments are `verdict`'s."""
        del player
        result = {"won": float(total > 0), "drawn": float(total == 0), "lost": float(total < 0)}
        return result if len(self.player_names) > 1 else {"won": float(total > 0)}

    def forfeit(self, losers: Collection[int]) -> Sequence[float]:
        """Return the rewards when some players lose by illegal moves: they -1, the others share the sum."""
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
        """Return the best action of the player now, None if it is not known. Must only look."""
        del player
        return None

    def render(self) -> str:
        """Return the game as people see it."""
        shown = (self.observe(player) for player in range(len(self.player_names)))
        return "\n".join(dict.fromkeys(text for text in shown if text))

    # --- what a game calls ----------------------------------------------------------------------------------

    def tell(self, text: str, *players: int) -> None:
        """Add a text to the next observation of these players, or of all if none is named."""
        for player in players or range(len(self._news)):
            self._news[player].append(text)

    def give(self, player: int, reward: float) -> None:
        """Pay a reward in the middle of the game.

        Raises:
            InvalidEnvironmentError: There is no such player, or it was eliminated before.
            InvalidRewardError: The reward is not a finite number.
        """
        self._check_player(player, "give")
        if self._gifts is None:
            self._gifts = [0.0] * len(self._news)
        self._gifts[player] += self._number(reward)

    def eliminate(self, player: int, reward: float = 0.0) -> None:
        """End the game for one player; the others play on. When nobody is left, the game is over.

        Args:
            player: Is not asked for a move again, and earns nothing after this move.
            reward: What it is paid now.
        """
        self.give(player, reward)
        self._eliminated |= {player}

    def truncate(self) -> None:
        """Say that a limit cuts the game off, in the call of `play` that returns the rewards."""
        self._cut_off = True

    @property
    def eliminated(self) -> AbstractSet[int]:
        """The players for whom this game is over already."""
        return self._eliminated

    @property
    def player_names(self) -> Sequence[str]:
        """What the players are called in the text."""
        if isinstance(self.players, int):
            return [f"player_{player}" for player in range(self.players)]
        return self.players

    # --- for GameEnv ----------------------------------------------------------------------------------------

    def start(self, rng: np.random.Generator) -> None:
        """Begin, with the openings as the first news."""
        self._news = [[] for _ in self.player_names]
        self._gifts = None
        self._eliminated, self._cut_off = frozenset(), False
        self.begin(rng)
        if len(self._news) != len(self.player_names):
            raise InvalidEnvironmentError(
                f"{type(self).__name__} has {len(self.player_names)} players after begin, and had "
                f"{len(self._news)} before",
                hint="set `players` in the class or in __init__",
                field="environment",
            )
        for player, news in enumerate(self._news):
            if opening := self.opening(player):
                news.insert(0, opening)

    def payoff(self, outcome: Rewards, player: int) -> list[float]:
        """Return a finished game's reward of each player.

        Raises:
            InvalidEnvironmentError: There are not as many numbers as players.
            InvalidRewardError: A number is not finite.
        """
        count = len(self.player_names)
        if isinstance(outcome, Mapping | AbstractSet | str | bytes):
            # Whose numbers a mapping's keys would be paid, and a set's in any order.
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
            why = "was eliminated before" if known else "does not exist"
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
