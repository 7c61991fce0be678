"""`tinkergym play GAME`: the user takes seats or watches; scripts, policies or models play the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import typer
from rich.markup import escape

from tinkergym.agent.coordinator import Position, Standing
from tinkergym.cli.console import INTERRUPTED, err, out
from tinkergym.cli.json_output import emit
from tinkergym.cli.key_value_settings import parse_settings
from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.matches import Player
from tinkergym.messages import observation_text
from tinkergym.registration.games import make_game
from tinkergym.remote.api import Api
from tinkergym.remote.client import Client
from tinkergym.remote.game_players import find_seats, is_offered
from tinkergym.remote.policy import Policy
from tinkergym.remote.policy_chat import PolicyChat
from tinkergym.rollout.environment_host import system_prompt_of
from tinkergym.rollout.game_table import GameTable
from tinkergym.rollout.table_players import ScriptedPlayer, offered


@dataclass(frozen=True, slots=True, kw_only=True)
class Seating:
    """Who plays which seat, as the command line says."""

    seats: Sequence[str]
    """The user's agents; empty to watch."""
    players: Sequence[str]
    """`AGENT=PLAYER` for single seats."""
    policy: str | None
    """Who plays all others: a player of the game, a policy or a model; None uses the game's first script."""
    temperature: float | None
    """Sampling temperature of policies."""


def play_seat(env: str, settings: Sequence[str], seating: Seating, *, seeds: range, as_json: bool) -> None:
    """Play games of the user with or against others, or of others only.

    Args:
        env: The game's id.
        settings: `name=value` of the game.
        seating: Who plays.
        seeds: Seeds of the games.
        as_json: Write JSON lines for a program instead of text.
    """
    table = GameTable(make_game(env, **parse_settings(settings)))
    with ExitStack() as stack:
        stack.callback(table.close)
        for seat in seating.seats:
            _require_seat(table, env, seat, "--seat")
        players = _players(table, env, seating, stack)
        game = _Game(table, seating.seats, _Others(table, players), as_json=as_json)
        try:
            for seed in seeds:
                game.play(seed)
        except (KeyboardInterrupt, EOFError) as left:
            (err if as_json else out).print("\nleft the game")
            if isinstance(left, KeyboardInterrupt):
                raise typer.Exit(INTERRUPTED) from None


def _require_seat(table: GameTable, env: str, seat: str, field: str) -> None:
    if seat not in table.agents:
        raise InvalidRequestError(
            f"{env} has no seat {seat!r}", hint=f"its seats are {', '.join(table.agents)}", field=field
        )


def _players(table: GameTable, env: str, seating: Seating, stack: ExitStack) -> dict[str, Player]:
    """Return who plays each seat that the user does not take."""
    named: dict[str, str] = {}
    for assignment in seating.players:
        agent, _, name = assignment.partition("=")
        _require_seat(table, env, agent, "--player")
        if not name or agent in named or agent in seating.seats:
            why = "has no player" if not name else "has two players"
            raise InvalidRequestError(
                f"the seat {agent!r} {why}",
                hint="write --player AGENT=PLAYER once per seat",
                field="--player",
            )
        named[agent] = name
    find = _Finder(table, seating.temperature, stack)
    found = {agent: find(name, [agent], field="--player")[agent] for agent, name in named.items()}
    left = [agent for agent in table.agents if agent not in found and agent not in seating.seats]
    if left:
        found |= find(seating.policy or _usual(table), left, field="--policy")
    elif seating.policy is not None:
        raise InvalidRequestError("no seat is left for it", hint="leave it out", field="--policy")
    scripts = [player.name for player in found.values() if isinstance(player.plays, str)]
    if seating.temperature is not None and len(scripts) == len(found):
        what = f"the player {scripts[0]!r} has none" if scripts else "no policy plays"
        raise InvalidRequestError(what, hint="leave it out", field="--temperature")
    return found


def _usual(table: GameTable) -> str:
    there = offered(table.unwrapped)
    if not there:
        raise InvalidRequestError(
            "the game offers no players", hint="name a policy or a model", field="--policy"
        )
    return there[0]


class _Finder:
    """Finds players of seats by name; connects to the service only for a policy or a model."""

    def __init__(self, table: GameTable, temperature: float | None, stack: ExitStack) -> None:
        self._table, self._temperature, self._stack = table, temperature, stack
        self._client: Client | None = None

    def __call__(self, name: str, agents: Sequence[str], *, field: str) -> dict[str, Player]:
        """Return who plays these seats.

        Raises:
            InvalidRequestError: There is no such player, or it was trained for another seat.
        """
        if is_offered(self._table, name):
            return dict.fromkeys(agents, Player(name=name, plays=name))
        found = find_seats(self._api, name, self._table, agents, temperature=self._temperature)
        missing = next((agent for agent in agents if not found[agent].can_play(agent)), None)
        if missing is not None:
            player = found[missing]
            raise InvalidRequestError(
                f"{player.name} was trained for {', '.join(player.seats or ())}, not for {missing}",
                hint=f"take {missing} yourself, or write --player {missing}=PLAYER",
                field=field,
            )
        return found

    @property
    def _api(self) -> Api:
        if self._client is None:
            self._client = self._stack.enter_context(Client())
        return self._client.api


class _Others:
    """The players of the seats that the user does not take."""

    def __init__(self, table: GameTable, players: Mapping[str, Player]) -> None:
        self._table, self._players = table, players
        self._chats: dict[str, PolicyChat] = {}
        self._scripts: dict[str, Any] = {}

    @property
    def names(self) -> dict[str, str]:
        """The players' names, by agent."""
        return {agent: player.name for agent, player in self._players.items()}

    def begin(self, seed: int) -> None:
        """Begin a game: every seat has its own conversation."""
        for number, (agent, player) in enumerate(self._players.items()):
            if isinstance(player.plays, str):
                script = ScriptedPlayer(self._table.unwrapped, player.plays, seed * 1009 + number)
                self._scripts[agent] = script
                continue
            if agent not in self._chats:
                assert isinstance(player.plays, Policy)
                player.plays.environment_prompt = system_prompt_of(self._table)
                self._chats[agent] = player.plays.chat()
            self._chats[agent].reset(seed=seed * 1009 + number)

    def act(self, standing: Standing) -> str:
        """Return the agent's action."""
        if standing.agent in self._scripts:
            return str(self._scripts[standing.agent].act(standing.agent, standing.observation))
        return self._chats[standing.agent].act(standing.observation)


class _Game:
    """Shows games to the user."""

    def __init__(self, table: GameTable, seats: Sequence[str], others: _Others, *, as_json: bool) -> None:
        self._table, self._seats, self._others, self._json = table, seats, others, as_json

    def play(self, seed: int) -> None:
        """Play one game to its end."""
        self._others.begin(seed)
        totals = dict.fromkeys(self._table.agents, 0.0)
        self._begin(seed)
        position = self._table.reset(seed=seed)
        shown: dict[str, str] = {}
        self._account(position, totals, shown)
        while (turn := position.turn) is not None:
            if turn.agent in self._seats:
                action = self._ask(turn)
            else:
                action = self._others.act(turn)
                self._tell(turn.agent, action)
            position = self._table.step(action)
            self._account(position, totals, shown)
        self._end(seed, shown, totals)

    def _account(self, position: Position, totals: dict[str, float], shown: dict[str, str]) -> None:
        """Add up rewards, and keep what the user is shown at the end of the game."""
        for standing in [*position.ended, *([position.turn] if position.turn is not None else [])]:
            totals[standing.agent] += float(standing.reward)
        for one in position.ended:
            if one.agent in self._seats and (text := observation_text(one.observation)):
                shown[one.agent] = text

    def _begin(self, seed: int) -> None:
        names = self._others.names
        against = next(iter(names.values()), "") if len(set(names.values())) < 2 else ""
        if self._json:
            seat = {"seat": self._seats[0]} if len(self._seats) == 1 else {"seats": list(self._seats)}
            opponent = {"opponent": against} if against else {}
            emit({"event": "reset", "seed": seed, **seat, **opponent, "players": names})
            return
        others = against or ", ".join(f"{name} as {agent}" for agent, name in names.items())
        who = f"you are {' and '.join(self._seats)}, against " if self._seats else ""
        out.rule(f"game with seed {seed}: {who}{others or 'nobody else'}", style="dim")

    def _ask(self, turn: Standing) -> str:
        text = observation_text(turn.observation)
        if self._json:
            emit(
                {"event": "your_move", "seat": turn.agent, "observation": text, "reward": float(turn.reward)}
            )
            return out.input()
        out.print(text, markup=False, highlight=False, soft_wrap=True)
        return out.input(f"[green]{'you' if len(self._seats) == 1 else escape(turn.agent)}[/] > ")

    def _tell(self, agent: str, action: str) -> None:
        if self._json:
            if not self._seats:  # a program that plays is shown only what the game tells it
                emit({"event": "action", "seat": agent, "action": action})
            return
        # In a game with hidden moves the user is shown only what the game tells them.
        if not self._seats or not self._hides_moves:
            out.print(f"[cyan]{escape(agent)}[/]", highlight=False)
            out.print(action, markup=False, highlight=False, soft_wrap=True)

    @property
    def _hides_moves(self) -> bool:
        rules = getattr(self._table.unwrapped, "game", None)
        return bool(getattr(rules, "simultaneous", False))

    def _end(self, seed: int, shown: Mapping[str, str], totals: Mapping[str, float]) -> None:
        mine = self._seats[0] if len(self._seats) == 1 else None
        if self._json:
            own: dict[str, Any] = {"observations": dict(shown)}
            if mine is not None:
                own = {"return": totals[mine], "observation": shown.get(mine, "")}
            emit({"event": "end", "seed": seed, **own, "returns": dict(totals)})
            return
        for agent, text in shown.items():
            if mine is None:
                out.print(f"[cyan]{escape(agent)}[/]", highlight=False)
            out.print(text, markup=False, highlight=False, soft_wrap=True)
        others = ", ".join(f"{agent} {paid:+g}" for agent, paid in totals.items() if agent != mine)
        text = f"returns: {others}" if mine is None else f"your return {totals[mine]:+g} ({others})"
        out.print(f"{text}\n", markup=False, highlight=False)
