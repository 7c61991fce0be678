"""`tinkergym play GAME --seat AGENT`: the user takes a seat; scripts, policies or models play the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import typer

from tinkergym.cli.console import INTERRUPTED, err, out
from tinkergym.cli.json_output import emit
from tinkergym.errors import InvalidRequestError
from tinkergym.messages import observation_text

if TYPE_CHECKING:
    from tinkergym.agent.coordinator import Position, Standing
    from tinkergym.evaluation.matches import Player
    from tinkergym.remote.policy import Policy
    from tinkergym.rollout.game_table import GameTable


def play_seat(
    env: str,
    settings: Sequence[str],
    *,
    seat: str,
    opponent: str | None,
    seeds: range,
    temperature: float | None,
    as_json: bool,
) -> None:
    """Play games of the user against others.

    Args:
        env: The game's id.
        settings: `name=value` of the game.
        seat: The user's agent.
        opponent: Who plays the others: a player of the game, a policy or a model; None uses the game's first
            script.
        seeds: Seeds of the games.
        temperature: Sampling temperature of a policy.
        as_json: Write JSON lines for a program instead of text.
    """
    from tinkergym.cli.settings import parse_settings
    from tinkergym.registration.games import make_game
    from tinkergym.rollout.game_table import GameTable

    table = GameTable(make_game(env, **parse_settings(settings)))
    with ExitStack() as stack:
        stack.callback(table.close)
        others = [agent for agent in table.agents if agent != seat]
        if seat not in table.agents:
            raise InvalidRequestError(
                f"{env} has no seat {seat!r}",
                hint=f"its seats are {', '.join(table.agents)}",
                field="--seat",
            )
        player = _opponent(table, opponent, temperature, stack)
        missing = next((agent for agent in others if not player.can_play(agent)), None)
        if missing is not None:
            raise InvalidRequestError(
                f"{player.name} was trained for {', '.join(player.seats or ())}, not for {missing}",
                hint="take its opponent's seat, or name another policy",
                field="--policy",
            )
        game = _Game(table, seat, _Others(table, others, player), as_json=as_json)
        try:
            for seed in seeds:
                game.play(seed)
        except (KeyboardInterrupt, EOFError) as left:
            (err if as_json else out).print("\nleft the game")
            if isinstance(left, KeyboardInterrupt):
                raise typer.Exit(INTERRUPTED) from None


def _opponent(table: GameTable, name: str | None, temperature: float | None, stack: ExitStack) -> Player:
    from tinkergym.evaluation.matches import Player
    from tinkergym.remote.game_players import find_player, is_offered
    from tinkergym.rollout.table_players import offered

    if name is None:
        there = offered(table.unwrapped)
        if not there:
            raise InvalidRequestError(
                "the game offers no players", hint="name a policy or a model", field="--policy"
            )
        name = there[0]
    if is_offered(table, name):
        if temperature is not None:
            raise InvalidRequestError(f"the player {name!r} has none", field="--temperature")
        return Player(name=name, plays=name)
    from tinkergym.remote.client import Client

    api = stack.enter_context(Client())._api
    return find_player(api, name, table, temperature=temperature)


class _Others:
    """The player of the seats that the user does not take."""

    def __init__(self, table: GameTable, agents: Sequence[str], player: Player) -> None:
        self.name = player.name
        self._table, self._agents, self._player = table, agents, player
        self._policies: dict[str, Policy] = {}
        self._scripts: dict[str, Any] = {}

    def begin(self, seed: int) -> None:
        """Begin a game: every seat has its own conversation."""
        from tinkergym.rollout.environment_host import system_prompt_of
        from tinkergym.rollout.table_players import ScriptedPlayer

        for number, agent in enumerate(self._agents):
            if isinstance(self._player.plays, str):
                script = ScriptedPlayer(self._table.unwrapped, self._player.plays, seed * 1009 + number)
                self._scripts[agent] = script
                continue
            if agent not in self._policies:
                self._policies[agent] = self._player.plays.copy()  # type: ignore[union-attr] # a remote policy
                self._policies[agent].environment_prompt = system_prompt_of(self._table)
            self._policies[agent].reset(seed=seed * 1009 + number)

    def act(self, standing: Standing) -> str:
        """Return the agent's action."""
        if standing.agent in self._scripts:
            return str(self._scripts[standing.agent].act(standing.agent, standing.observation))
        return self._policies[standing.agent].act(standing.observation)


class _Game:
    """Shows the games of one user."""

    def __init__(self, table: GameTable, seat: str, others: _Others, *, as_json: bool) -> None:
        self._table, self._seat, self._others, self._json = table, seat, others, as_json

    def play(self, seed: int) -> None:
        """Play one game to its end."""
        self._others.begin(seed)
        totals = dict.fromkeys(self._table.agents, 0.0)
        self._begin(seed)
        position = self._table.reset(seed=seed)
        last = self._account(position, totals)
        while (turn := position.turn) is not None:
            if turn.agent == self._seat:
                action = self._ask(turn)
            else:
                action = self._others.act(turn)
                self._tell(turn.agent, action)
            position = self._table.step(action)
            last = self._account(position, totals) or last
        self._end(seed, last, totals)

    def _account(self, position: Position, totals: dict[str, float]) -> str:
        """Add up rewards, and return what the user was shown at the end of the game."""
        for standing in [*position.ended, *([position.turn] if position.turn is not None else [])]:
            totals[standing.agent] += float(standing.reward)
        shown = [observation_text(one.observation) for one in position.ended if one.agent == self._seat]
        return shown[0] if shown else ""

    def _begin(self, seed: int) -> None:
        if self._json:
            emit({"event": "reset", "seed": seed, "seat": self._seat, "opponent": self._others.name})
            return
        out.rule(f"game with seed {seed}: you are {self._seat}, against {self._others.name}", style="dim")

    def _ask(self, turn: Standing) -> str:
        text = observation_text(turn.observation)
        if self._json:
            emit({"event": "your_move", "observation": text, "reward": float(turn.reward)})
            return out.input()
        out.print(text, markup=False, highlight=False, soft_wrap=True)
        return out.input("[green]you[/] > ")

    def _tell(self, agent: str, action: str) -> None:
        # In a game with hidden moves the user is shown only what the game tells them; so is a program.
        if not self._json and not self._hides_moves:
            out.print(f"[cyan]{agent}[/]", highlight=False)
            out.print(action, markup=False, highlight=False, soft_wrap=True)

    @property
    def _hides_moves(self) -> bool:
        rules = getattr(self._table.unwrapped, "game", None)
        return bool(getattr(rules, "simultaneous", False))

    def _end(self, seed: int, shown: str, totals: Mapping[str, float]) -> None:
        mine = totals[self._seat]
        if self._json:
            emit(
                {"event": "end", "seed": seed, "return": mine, "returns": dict(totals), "observation": shown}
            )
            return
        if shown:
            out.print(shown, markup=False, highlight=False, soft_wrap=True)
        others = ", ".join(f"{agent} {paid:+g}" for agent, paid in totals.items() if agent != self._seat)
        out.print(f"your return {mine:+g} ({others})\n", highlight=False)
