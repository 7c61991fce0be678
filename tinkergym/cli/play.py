"""`tinkergym play`: play in the place of a policy, watch a policy play, or play against one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Annotated, Any

import typer
from rich.markup import escape

from tinkergym.agent.renderer import Renderer
from tinkergym.agent.tool_turns import offered_tools
from tinkergym.cli.console import INTERRUPTED, err, out
from tinkergym.cli.field_options import SettingOption, with_decoding_options
from tinkergym.cli.json_output import AsJsonLines, emit
from tinkergym.cli.key_value_settings import parse_settings
from tinkergym.cli.named_environment import find_environment
from tinkergym.cli.named_policy import named_policy
from tinkergym.cli.options import (
    CUT,
    LARGEST_SEED,
    EnvironmentId,
    EnvironmentSettings,
    TemplateSettings,
    options_said,
    refuse_options,
)
from tinkergym.cli.play_seat import Seating, play_seat
from tinkergym.errors import InvalidRequestError
from tinkergym.messages import Message, messages_text, observation_messages, opening_messages, system, user
from tinkergym.registration.environments import make
from tinkergym.registration.games import is_game
from tinkergym.remote.client import Client
from tinkergym.remote.model_files import find_bundle
from tinkergym.rollout.environment_host import AnyEnv, system_prompt_of
from tinkergym.rollout.local_environment import Environment, describe
from tinkergym.rollout.table_tools import with_offer
from tinkergym.schema.seat_tools import SeatTools
from tinkergym.trajectory.content_parts import content_text

MOST_STEPS = 1000
"""An episode is abandoned after this many steps."""


_PolicyName = Annotated[
    str | None,
    typer.Option(
        metavar="JOB_ID",
        help="The job whose policy plays; JOB_ID@0: before training; JOB_ID@40, JOB_ID@step:40 or "
        "JOB_ID@best: a stored version; or an untrained model. (default: you play)",
    ),
]
_Seat = Annotated[
    list[str] | None,
    typer.Option(
        metavar="AGENT",
        help="In a game for several players: the seat that you take; repeatable. --policy plays the others: "
        "JOB_ID@40, JOB_ID/AGENT@40, a model, or a player of the game, such as random. (default: the game's "
        "first)",
    ),
]
_Players = Annotated[
    list[str] | None,
    typer.Option(
        "--player",
        metavar="AGENT=PLAYER",
        help="In a game for several players: who plays this seat, named as for --policy; repeatable.",
    ),
]
_Watch = Annotated[
    bool,
    typer.Option("--watch", help="Only watch, even if you could play against the policy or take a seat."),
]
_Seed = Annotated[
    int, typer.Option(help="Seed of the first episode; later ones count up.", min=0, max=LARGEST_SEED)
]
_Raw = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Show the prompt as this model's chat template renders it, including special tokens; a model "
        "of the service or a directory with its tokenizer.",
    ),
]


@with_decoding_options(
    (
        SettingOption("temperature", "Sampling temperature of the policy. (default: as in training)"),
        *CUT,
    )
)
def play(
    env: EnvironmentId,
    *,
    ctx: typer.Context,
    policy: _PolicyName = None,
    seat: _Seat = None,
    player: _Players = None,
    watch: _Watch = False,
    episodes: Annotated[int, typer.Option(help="How many.", min=1)] = 1,
    seed: _Seed = 0,
    decoding: dict[str, Any],
    raw: _Raw = None,
    template_set: TemplateSettings = None,
    env_setting: EnvironmentSettings = None,
    as_json: AsJsonLines = False,
) -> None:
    """Play an environment yourself, or let a trained policy play.

    Without --policy you see exactly what a model sees, including the system prompt, and type the actions. End
    a line with a backslash to continue it on the next. With --policy you play against it if the environment's
    opponent can be replaced; otherwise you watch it. Press Ctrl-C to quit.

    Example: tinkergym play board/TicTacToeVs-v0 --policy JOB_ID
    Example: tinkergym play board/Gomoku-v0 --seat white --policy JOB_ID/black@40
    Example: tinkergym play tabletop/LiarsDice-v0 --seat player_0 --player player_1=JOB_ID/player_1@40
    """
    said = options_said(ctx)
    if seat or player or (watch and is_game(env)):
        apart = {"top_p", "top_k", "raw", "template_set", *(["watch"] if seat else [])}
        refuse_options([said[name] for name in said if name in apart], "cannot be used with --seat")
        if not seat and not watch:
            _refuse_without_a_seat(env)
        seating = Seating(
            seats=seat or [], players=player or [], policy=policy, temperature=decoding.get("temperature")
        )
        play_seat(env, env_setting or [], seating, seeds=range(seed, seed + episodes), as_json=as_json)
        return

    _refuse_without_a_seat(env)
    if policy is None:
        refuse_options(
            [said[name] for name in said if name in {"watch", "template_set", *decoding}],
            "needs --policy; without it you play yourself",
            hint="leave it out, or name a job with --policy JOB_ID",
        )
    described = describe(find_environment(env), parse_settings(env_setting or []))
    renderer = _renderer(raw) if raw is not None else None
    made = _made(described, env)
    seeds = range(seed, seed + episodes)
    table_of = partial(_JsonTable if as_json else _Table, made, renderer=renderer)
    try:
        if policy is None:
            _episodes(table_of(_ask_for_action, prompt=None), seeds, as_json=as_json)
            return
        variables = parse_settings(template_set or [])
        own = {"seed": seed, **decoding, "template_variables": variables}
        _policy_plays(policy, own, made, table_of, seeds, watch=watch, as_json=as_json)
    except (KeyboardInterrupt, EOFError) as left:
        (err if as_json else out).print("\nleft the game")
        if isinstance(left, KeyboardInterrupt):
            raise typer.Exit(INTERRUPTED) from None
    finally:
        made.close()


def _policy_plays(
    name: str,
    decoding: dict[str, Any],
    made: Any,
    table_of: Callable[..., Any],
    seeds: range,
    *,
    watch: bool,
    as_json: bool,
) -> None:
    """Let a policy play, or play against it if it can take the seat of the environment's opponent."""
    with Client() as client:
        player = named_policy(client, name, decoding)
        player.environment_prompt = system_prompt_of(made)
        seated = not watch and _take_opponents_seat(made, as_json=as_json)
        chat = player.chat()
        table = table_of(
            chat.act,
            prompt=player.system_prompt,
            reset=chat.reset,
            policy_tools=player.tools,
            seated=seated,
        )
        _episodes(table, seeds, as_json=as_json)


def _made(described: Environment, env: str) -> Any:
    if described.make is None:
        return make(env)  # This raises with close matches.
    return described.make(described.ref)


def _renderer(model: str) -> Renderer:
    return Renderer.from_bundle(find_bundle(model))


def _refuse_without_a_seat(env: str) -> None:
    if is_game(env):
        raise InvalidRequestError(
            f"{env} has several seats; choose one",
            hint="add --seat AGENT, or --watch to take none; or play the id with Vs against an opponent",
            field="--seat",
        )


def _take_opponents_seat(env: AnyEnv, *, as_json: bool) -> bool:
    """Let the user answer for the opponent; return False if the environment has no replaceable opponent."""
    # Offered by environments whose opponent can be anything that reads and answers text.
    seat_opponent = getattr(env.unwrapped, "seat_opponent", None)
    if seat_opponent is None:
        return False
    seat_opponent(_ask_a_program_for_move if as_json else _ask_for_move)
    (err if as_json else out).print(
        "You take the opponent's seat. Type actions as the policy does; press Ctrl-C to quit.\n"
    )
    return True


class Ending(Enum):
    """Why an episode ended."""

    TERMINATED = "the task ended"
    TRUNCATED = "cut off by a limit"
    STEP_LIMIT = "left"


@dataclass(frozen=True, slots=True)
class _Table:
    """Who plays what, and what is shown."""

    env: Any
    act: Callable[[Any, Any], str]
    prompt: str | None
    """The job's system prompt; None uses the environment's own."""
    renderer: Renderer | None = None
    """Shows messages as a model's chat template renders them."""
    reset: Callable[[], None] = lambda: None
    policy_tools: SeatTools | None = None
    """Tools that the policy was trained with."""
    seated: bool = False
    """Whether the user takes the opponent's seat, and so is shown the game on their turn."""

    def begin(self, seed: int, observation: Any) -> None:
        """Show the start of an episode."""
        out.rule(f"episode with seed {seed}", style="dim")
        text, messages = self._opening(observation)
        if text is not None:
            _say("prompt", text)
        else:
            self._show(messages)

    def acted(self, action: str) -> None:
        """Show the policy's action. A user knows their own."""
        if self.act is not _ask_for_action:
            _say("policy", action)

    def go_on(self, observation: Any, reward: float) -> None:
        """Show the environment's response."""
        text, messages = self._continuation(observation)
        if text is not None:
            _say("prompt", text)
        else:
            self._show(messages)

    def end(self, seed: int, observation: Any, reward: float, total: float, how: Ending) -> None:
        """Show how the episode ended."""
        if how is Ending.STEP_LIMIT:
            out.print(f"left after {MOST_STEPS} steps, return {total:+g}\n", highlight=False)
            return
        if text := messages_text(_messages(observation)):
            _say("the policy is told" if self.seated else "environment", text)
        out.print(f"{'its ' if self.seated else ''}return {total:+g} ({how.value})\n", highlight=False)

    def _opening(self, observation: Any) -> tuple[str | None, list[Message]]:
        """Return the first prompt: the chat template's text if requested, else the messages."""
        shown, tools = offered_tools(_messages(observation))
        messages = opening_messages(
            shown,
            job_prompt=self.prompt,
            environment_prompt=with_offer(system_prompt_of(self.env), self.policy_tools),
        )
        if self.renderer is not None:
            renderer = self.renderer.with_tools(tools)
            return renderer.decode(renderer.start(messages)), []
        if tools:  # which a model's template writes in its own way
            listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
            how = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
            messages = [system(f"tools, called with {how}:\n{listed}"), *messages]
        return None, [m for m in messages if m["role"] == "system" or not self.seated]

    def _continuation(self, observation: Any) -> tuple[str | None, list[Message]]:
        """Return the environment's response in the same form."""
        messages = _messages(observation)
        if self.renderer is not None:
            return self.renderer.decode(self.renderer.continuation(messages, answer_closed=True)), []
        return None, [] if self.seated else messages

    def _show(self, messages: list[Message]) -> None:
        for message in messages:
            _say(
                "environment" if message["role"] == "user" else message["role"],
                content_text(message["content"]),
            )


class _JsonTable(_Table):
    """Play with a program instead of a user: prints JSON lines."""

    def begin(self, seed: int, observation: Any) -> None:
        emit({"event": "reset", "seed": seed, **_prompt(*self._opening(observation))})

    def acted(self, action: str) -> None:
        emit({"event": "action", "action": action})

    def go_on(self, observation: Any, reward: float) -> None:
        emit({"event": "observation", "reward": reward, **_prompt(*self._continuation(observation))})

    def end(self, seed: int, observation: Any, reward: float, total: float, how: Ending) -> None:
        last = {"reward": reward, "messages": _messages(observation)}
        emit({"event": "end", "seed": seed, "return": total, "ended_by": how.name.lower(), **last})


def _prompt(text: str | None, messages: list[Message]) -> dict[str, Any]:
    return {"messages": messages} if text is None else {"prompt": text}


def _episodes(table: _Table, seeds: range, *, as_json: bool) -> None:
    returns: list[float] = []
    for seed in seeds:
        table.reset()
        returns.append(_episode(table, seed))
    if len(returns) > 1 and not as_json:
        mean = sum(returns) / len(returns)
        out.print(f"{len(returns)} episodes, mean return {mean:+.3f}", highlight=False)


def _episode(table: _Table, seed: int) -> float:
    observation, info = table.env.reset(seed=seed)
    table.begin(seed, observation)
    total = reward = 0.0
    for _ in range(MOST_STEPS):
        action = table.act(observation, info)
        table.acted(action)
        observation, earned, terminated, truncated, _ = table.env.step(action)
        reward = float(earned)
        total += reward
        if terminated or truncated:
            table.end(seed, observation, reward, total, Ending.TERMINATED if terminated else Ending.TRUNCATED)
            return total
        table.go_on(observation, reward)
    table.end(seed, observation, reward, total, Ending.STEP_LIMIT)
    return total


def _say(who: str, text: str) -> None:
    style = {"policy": "green", "system": "dim"}.get(who, "cyan")
    out.print(f"[{style}]{who}[/]", highlight=False)
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def _ask_for_action(_: object, __: object = None) -> str:
    lines = [out.input("[green]you[/] > ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(out.input("... > "))
    return "\n".join(lines)


def _ask_for_move(board: str) -> str:
    return out.input(f"[cyan]your move[/]\n{escape(board)}\n> ", emoji=False)


def _ask_a_program_for_move(board: str) -> str:
    emit({"event": "your_move", "observation": board})
    return out.input()


def _messages(observation: Any) -> list[Message]:
    try:
        return observation_messages(observation)
    except (TypeError, ValueError):  # Nothing that a policy could read, but still worth showing.
        return [user(str(observation))]
