"""PettingZoo's classic games in text: the same rules, moves, chance and rewards, with words for the arrays.

Needs `pip install '.[pettingzoo]'` in a checkout of tinkergym. `make_game` knows
`pettingzoo/TicTacToe-v0`, `pettingzoo/ConnectFour-v0`, `pettingzoo/RockPaperScissors-v0` and
`pettingzoo/LeducHoldem-v0`, and `make` the same with `Vs`.
"""

from __future__ import annotations

import importlib
import os
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tinkergym.errors import InvalidRequestError
from tinkergym.games.text_game import TextGame
from tinkergym.registration.games import make_against_opponent

_MARKS = ("X", "O")


class ClassicGame(TextGame):
    """A turn-based game of PettingZoo whose actions are numbers and whose observations are arrays.

    A subclass names the module and the actions, and describes an observation in words.
    """

    module: ClassVar[str] = ""
    """The module with PettingZoo's `raw_env`."""
    moves: ClassVar[tuple[str, ...]] = ()
    """Names of the actions 0, 1, ..."""

    def __init__(self, **settings: Any) -> None:
        """Create the game.

        Args:
            settings: Passed to PettingZoo's game.

        Raises:
            InvalidRequestError: PettingZoo's classic games are not installed.
        """
        # Hide the greeting that is printed at import.
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            module = importlib.import_module(self.module)
        except ImportError as error:
            raise InvalidRequestError(
                f"PettingZoo's classic games need {error.name}, which is not installed",
                hint="pip install '.[pettingzoo]' in a checkout of tinkergym",
                field="environment",
            ) from error
        self.table = module.raw_env(**settings)

    def words(self, observation: Any, player: int) -> str:
        """Return PettingZoo's observation of a player in words."""
        raise NotImplementedError(f"{type(self).__name__} needs a method words(observation, player)")

    def begin(self, rng: np.random.Generator) -> None:
        """Reset PettingZoo's game with a drawn seed."""
        self.table.reset(seed=int(rng.integers(2**31)))

    def first_player(self) -> int:
        """Return who moves first."""
        return self._selected()

    def next_player(self, player: int) -> int:
        """Return who moves next."""
        del player
        return self._selected()

    def observe(self, player: int) -> str:
        """Return PettingZoo's observation in words."""
        observation = self._observation(player)
        return self.words(
            observation["observation"] if isinstance(observation, dict) else observation, player
        )

    def legal(self, player: int) -> list[str]:
        """Return the moves allowed by PettingZoo's action mask; all moves in a game without one."""
        observation = self._observation(player)
        if not isinstance(observation, dict):
            return list(self.moves)
        return [self.moves[action] for action in np.flatnonzero(observation["action_mask"])]

    def play(self, player: int, move: str) -> list[float] | None:
        """Step PettingZoo's game."""
        del player
        return self._step([move])

    def _step(self, moves: list[str]) -> list[float] | None:
        """Step PettingZoo's game and add the rewards of its `last`; return them if the game is over."""
        table = self.table
        for move in moves:
            before = {**table._cumulative_rewards, table.agent_selection: 0.0}
            table.step(self.moves.index(move))
            for player, agent in enumerate(table.possible_agents):
                if earned := float(table._cumulative_rewards.get(agent, 0.0) - before.get(agent, 0.0)):
                    self.give(player, earned)
        if not self._over():
            self._let_go()
            return None
        stopped = {agent for agent in table.agents if not table.terminations[agent]}
        if stopped:
            self.truncate()
            for agent in set(table.agents) - stopped:
                self.eliminate(table.possible_agents.index(agent))
        return [0.0] * len(table.possible_agents)

    def _let_go(self) -> None:
        """Eliminate players whose game PettingZoo has ended while others continue."""
        table = self.table
        while table.terminations[table.agent_selection] or table.truncations[table.agent_selection]:
            self.eliminate(self._selected())
            table.step(None)

    def _observation(self, player: int) -> Any:
        return self.table.observe(self.table.possible_agents[player])

    def _selected(self) -> int:
        return int(self.table.possible_agents.index(self.table.agent_selection))

    def _over(self) -> bool:
        table = self.table
        return all(table.terminations[agent] or table.truncations[agent] for agent in table.agents)


class ClassicTicTacToe(ClassicGame):
    """PettingZoo's `tictactoe_v3`; a free cell shows the number of its action."""

    players = _MARKS
    module = "pettingzoo.classic.tictactoe.tictactoe"
    moves = tuple(map(str, range(9)))

    def words(self, observation: Any, player: int) -> str:
        """Return three lines, as PettingZoo draws them: cell 1 is below cell 0."""
        return _board(observation.transpose(1, 0, 2), player, np.arange(9).reshape(3, 3).T)


class ClassicConnectFour(ClassicGame):
    """PettingZoo's `connect_four_v3`; an action is a column."""

    players = _MARKS
    module = "pettingzoo.classic.connect_four.connect_four"
    moves = tuple(map(str, range(7)))

    def words(self, observation: Any, player: int) -> str:
        """Return the columns' numbers and the six lines below them."""
        return " ".join(self.moves) + "\n" + _board(observation, player, np.full((6, 7), "."))


class ClassicLeducHoldem(ClassicGame):
    """PettingZoo's `leduc_holdem_v4`: poker with six cards. The first player is drawn."""

    module = "pettingzoo.classic.rlcard_envs.leduc_holdem"
    moves = ("call", "raise", "fold", "check")

    def words(self, observation: Any, player: int) -> str:
        """Return the cards that the player sees, both stakes and the legal actions."""
        # 3 flags for the player's card, 3 for the public one, then two blocks of 15 for 0 to 14 chips.
        hand, public, mine, theirs = np.split(observation, [3, 6, 21])
        cards = f"You hold {_card(hand)}. On the table: {_card(public)}."
        chips = f"Chips in the pot: {int(mine.argmax())} yours, {int(theirs.argmax())} your opponent's."
        legal = ", ".join(self.legal(player))
        return f"{cards}\n{chips}" + (f"\nYou can {legal}." if legal and self._selected() == player else "")


class ClassicRockPaperScissors(ClassicGame):
    """PettingZoo's `rps_v2`; pays 1, 0 or -1 for each round, `max_cycles` of them."""

    simultaneous = True
    module = "pettingzoo.classic.rps.rps"
    moves = ("rock", "paper", "scissors")

    def __init__(self, max_cycles: int = 15) -> None:
        """Create the game with this many rounds."""
        super().__init__(max_cycles=max_cycles)
        self.rounds = max_cycles

    def begin(self, rng: np.random.Generator) -> None:
        """Return the text that announces the game."""
        super().begin(rng)
        self.tell(f"Rock, paper or scissors? {self.rounds} rounds.")

    def observe(self, player: int) -> str:
        """Return what the opponent showed in the previous round."""
        shown = int(self._observation(player))
        return f"Your opponent showed {self.moves[shown]}." if shown < len(self.moves) else ""

    def legal(self, player: int) -> list[str]:
        """Return the three shapes."""
        del player
        return list(self.moves)

    def play_round(self, moves: list[str]) -> list[float] | None:
        """Step PettingZoo's game for both."""
        return self._step(moves)


tic_tac_toe_versus = partial(make_against_opponent, "pettingzoo/TicTacToe-v0")
connect_four_versus = partial(make_against_opponent, "pettingzoo/ConnectFour-v0")
rock_paper_scissors_versus = partial(make_against_opponent, "pettingzoo/RockPaperScissors-v0")
leduc_holdem_versus = partial(make_against_opponent, "pettingzoo/LeducHoldem-v0")


def _board(planes: Any, player: int, empty: Any) -> str:
    """Format a board with two planes, one for the player's stones and one for the other's."""
    mine, theirs = _MARKS[player], _MARKS[1 - player]
    shown = np.where(planes[:, :, 0], mine, np.where(planes[:, :, 1], theirs, empty.astype(str)))
    return "\n".join(" ".join(row) for row in shown)


def _card(flags: Any) -> str:
    return "JQK"[int(flags.argmax())] if flags.any() else "nothing yet"
