"""`tinkergym play`: sit where the policy sits, watch a policy play, or play against one."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from tinkergym.cli.console import out
from tinkergym.messages import observation_text

MOST_STEPS = 1000
"""An environment that never ends is left after so many."""


def play(
    env: Annotated[
        str,
        typer.Argument(metavar="ENV", help="An environment's id, see `tinkergym envs`; or module:ClassName."),
    ],
    *,
    policy: Annotated[
        str | None, typer.Option(metavar="JOB_ID", help="The job whose policy plays. (default: you play)")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Only watch the policy, also where you could play against it.")
    ] = False,
    episodes: Annotated[int, typer.Option(help="How many.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Of the first episode; the next ones count up.", min=0)] = 0,
    temperature: Annotated[
        float | None, typer.Option(help="Of the policy's answers. (default: as in training)", min=0)
    ] = None,
    env_setting: Annotated[
        list[str] | None,
        typer.Option("--env-set", metavar="KEY=VALUE", help="An argument of the environment; repeatable."),
    ] = None,
) -> None:
    """Play an environment yourself, or let a trained policy play.

    Without --policy you see exactly what a model sees and answer as it would. With --policy you play against
    it, in games where the environment's opponent can be replaced, and watch it in all others.

    Example: tinkergym play board/TicTacToeVs-v0 --policy JOB_ID
    """
    from tinkergym.cli.settings import find_environment, parse_settings
    from tinkergym.loop.environment_host import system_prompt_of
    from tinkergym.remote.local_environment import describe

    described = describe(find_environment(env), parse_settings(env_setting or []))
    if described.make is None:
        from tinkergym.registration import make

        make(env)  # raises with the close matches
        return
    made = described.make(described.ref)
    try:
        if policy is None:
            prompt = system_prompt_of(made)
            _episodes(made, _ask_for_action, range(seed, seed + episodes), prompt, reset=lambda: None)
            return
        from tinkergym.remote.client import Client

        with Client() as client:
            player = client.job(policy).policy(temperature=temperature, seed=seed)
            player.environment_prompt = system_prompt_of(made)
            prompt = player.environment_prompt if player.system_prompt is None else player.system_prompt
            # Offered by environments whose opponent may be anybody who reads and answers text.
            seat_opponent = getattr(made.unwrapped, "seat_opponent", None)
            seated = False
            if seat_opponent is not None and not watch:
                seated = True
                seat_opponent(_ask_for_move)
                out.print("You take the opponent's seat. Answer as the policy does; Ctrl-C leaves.\n")
            seeds = range(seed, seed + episodes)
            _episodes(made, player.act, seeds, prompt, reset=player.reset, seated=seated)
    except (KeyboardInterrupt, EOFError):
        out.print("\nleft the game")
    finally:
        made.close()


def _episodes(
    env: Any, act: Any, seeds: range, prompt: str | None, *, reset: Any, seated: bool = False
) -> None:
    returns: list[float] = []
    for seed in seeds:
        reset()
        returns.append(_episode(env, act, seed, prompt, seated=seated))
    if len(returns) > 1:
        mean = sum(returns) / len(returns)
        out.print(f"{len(returns)} episodes, mean return {mean:+.3f}", highlight=False)


def _episode(env: Any, act: Any, seed: int, prompt: str | None, *, seated: bool) -> float:
    out.rule(f"episode with seed {seed}", style="dim")
    if prompt:
        _say("system", prompt)
    observation, _ = env.reset(seed=seed)
    total = 0.0
    for _ in range(MOST_STEPS):
        if not seated:  # who has a seat is shown the game when it is their turn
            _say("environment", _text(observation))
        action = act(observation)
        if act is not _ask_for_action:
            _say("policy", action)
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        if terminated or truncated:
            if _text(observation):
                _say("the policy is told" if seated else "environment", _text(observation))
            how = "the task ended" if terminated else "cut off by a limit"
            out.print(f"{'its ' if seated else ''}return {total:+g} ({how})\n", highlight=False)
            return total
    out.print(f"left after {MOST_STEPS} steps, return {total:+g}\n", highlight=False)
    return total


def _say(who: str, text: str) -> None:
    style = {"policy": "green", "system": "dim"}.get(who, "cyan")
    out.print(f"[{style}]{who}[/]", highlight=False)
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def _ask_for_action(_: object) -> str:
    return out.input("[green]you[/] > ")


def _ask_for_move(board: str) -> str:
    return out.input(f"[cyan]your move[/]\n{escape(board)}\n> ")


def _text(observation: Any) -> str:
    try:
        return observation_text(observation)
    except (TypeError, ValueError):  # nothing that a policy could read, and still worth a look
        return str(observation)
