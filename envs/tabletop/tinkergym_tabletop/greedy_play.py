"""Exact exploitability of greedy play: what a best response earns against deterministic players.

Only positions that can occur against such players are visited, so games can be measured whose whole tree is
far too large: tic-tac-toe has 549,946 lines of play, and fewer than 3,000 of them against greedy players.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tinkergym.errors import InvalidRequestError
from tinkergym.games.game_env import GameEnv
from tinkergym_tabletop.exploitability import Exploitability, GrowingTree, Growth, Situation

Choose = Callable[[Sequence[Situation]], Mapping[Situation, str]]
"""Returns the action chosen in each situation; called for many at once."""


def greedy_exploitability(game: GameEnv, choose: Choose) -> Exploitability:
    """Return what best responses earn against players that choose one action in each situation.

    Args:
        game: From `make_game`, of a `TextGame` that lists its legal moves and the outcomes of chance; see
            `EnumerableGame`.
        choose: Returns a player's action in each situation of the agent's seat.

    Raises:
        InvalidRequestError: The game is not such a game, or is too large even so; or an action is not legal.
    """
    chosen: dict[Situation, str] = {}
    values: dict[str, float] = {}
    best: dict[str, float] = {}
    agents: tuple[str, ...] = tuple(game.possible_agents)
    for free in (None, *agents):
        tree = _reachable(game, free, choose, chosen)
        certain = {one: {action: 1.0} for one, action in chosen.items()}
        if free is None:
            values = {agent: tree.value(agent, certain) for agent in agents}
        else:
            best[free] = tree.best_response(free, certain)
    return Exploitability(values=values, best_responses=best, situations=len(chosen))


def _reachable(game: GameEnv, free: str | None, choose: Choose, chosen: dict[Situation, str]) -> GrowingTree:
    """Expand the positions that can be reached if one agent may do anything and the others play greedily.

    Args:
        game: The game.
        free: The free agent; None if all play greedily.
        choose: Returns the greedy players' actions.
        chosen: The actions known so far, which are extended.
    """
    tree = GrowingTree(game)
    front: list[Growth] = tree.begin()
    while front:
        fixed = [one.situation for one in front if one.situation.agent != free]
        _ask(choose, [one for one in dict.fromkeys(fixed) if one not in chosen], chosen)
        front = [
            grown
            for one in front
            for action in (one.situation.legal if one.situation.agent == free else (chosen[one.situation],))
            if (grown := tree.grow(one, action)) is not None
        ]
    return tree


def _ask(choose: Choose, situations: Iterable[Situation], chosen: dict[Situation, str]) -> None:
    unknown = list(situations)
    if not unknown:
        return
    answers = choose(unknown)
    for one in unknown:
        action = answers[one]
        if action not in one.legal:
            raise InvalidRequestError(
                f"{action!r} is not one of {', '.join(one.legal)}",
                hint="return a legal action of the situation",
                field="choose",
            )
        chosen[one] = action
