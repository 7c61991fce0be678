"""`tinkergym play`: sit where the policy sits, watch a policy play, or play against one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tinkergym.cli.console import TopK, TopP, out
from tinkergym.errors import InvalidRequestError, NotFoundError
from tinkergym.messages import Message, messages_text, observation_messages, user

if TYPE_CHECKING:
    from tinkergym.loop.renderer import Renderer
    from tinkergym.remote.client import Client
    from tinkergym.remote.job import Job

MOST_STEPS = 1000
"""An environment that never ends is left after so many."""


def play(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="An environment's id, see `tinkergym envs`; module:ClassName; or ws://HOST:PORT.",
        ),
    ],
    *,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="JOB_ID",
            help="The job whose policy plays; JOB_ID@0: before training. (default: you play)",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Only watch the policy, also where you could play against it.")
    ] = False,
    episodes: Annotated[int, typer.Option(help="How many.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Of the first episode; the next ones count up.", min=0)] = 0,
    temperature: Annotated[
        float | None, typer.Option(help="Of the policy's answers. (default: as in training)", min=0)
    ] = None,
    top_p: TopP = None,
    top_k: TopK = None,
    raw: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Show the text that this model's chat template makes of it, special tokens and all; "
            "a model of the service or a directory with its tokenizer.",
        ),
    ] = None,
    env_setting: Annotated[
        list[str] | None,
        typer.Option("--env-set", metavar="KEY=VALUE", help="An argument of the environment; repeatable."),
    ] = None,
) -> None:
    """Play an environment yourself, or let a trained policy play.

    Without --policy you see exactly what a model sees, the system prompt included, and answer as it would:
    type the action; a line that ends with a backslash goes on in the next. With --policy you play against it,
    in games where the environment's opponent can be replaced, and watch it in all others. Ctrl-C leaves.

    Example: tinkergym play board/TicTacToeVs-v0 --policy JOB_ID
    """
    from tinkergym.cli.settings import find_environment, given, parse_settings
    from tinkergym.loop.environment_host import system_prompt_of
    from tinkergym.remote.local_environment import describe

    sampling = given(temperature=temperature, top_p=top_p, top_k=top_k)
    if policy is None:
        _refuse_of_a_policy([*(["watch"] if watch else []), *sampling])
    described = describe(find_environment(env), parse_settings(env_setting or []))
    if described.make is None:
        from tinkergym.registration import make

        make(env)  # raises with the close matches
        return
    renderer = None
    if raw is not None:
        from tinkergym.cli.model_files import find_bundle
        from tinkergym.loop.renderer import Renderer

        renderer = Renderer.from_bundle(find_bundle(raw))
    made = described.make(described.ref)
    seeds = range(seed, seed + episodes)
    try:
        if policy is None:
            _episodes(_Table(made, _ask_for_action, prompt=None, renderer=renderer), seeds)
            return
        from tinkergym.cli.eval_policy import policy_of
        from tinkergym.cli.settings import policy_and_version
        from tinkergym.remote.client import Client

        with Client() as client:
            job_id, version = policy_and_version(policy, field="--policy")
            player = policy_of(_job(client, job_id), version, {"seed": seed, **sampling})
            player.environment_prompt = system_prompt_of(made)
            # Offered by environments whose opponent may be anybody who reads and answers text.
            seat_opponent = getattr(made.unwrapped, "seat_opponent", None)
            seated = False
            if seat_opponent is not None and not watch:
                seated = True
                seat_opponent(_ask_for_move)
                out.print("You take the opponent's seat. Answer as the policy does; Ctrl-C leaves.\n")
            table = _Table(
                made,
                player.act,
                prompt=player.system_prompt,
                renderer=renderer,
                reset=player.reset,
                seated=seated,
            )
            _episodes(table, seeds)
    except (KeyboardInterrupt, EOFError):
        out.print("\nleft the game")
    finally:
        made.close()


def _refuse_of_a_policy(names: Sequence[str]) -> None:
    for name in names:
        raise InvalidRequestError(
            "it is of a policy, and without --policy you play yourself",
            hint="leave it out, or name a job with --policy JOB_ID",
            field=f"--{name.replace('_', '-')}",
        )


def _job(client: Client, name: str) -> Job:
    try:
        return client.job(name)
    except NotFoundError as error:
        raise NotFoundError(
            error.message,
            hint="play takes the id of a job, see `tinkergym jobs`; `tinkergym eval` takes a model too",
            field="--policy",
        ) from None


@dataclass(frozen=True, slots=True)
class _Table:
    """Who plays what, and what is shown of it."""

    env: Any
    act: Callable[[Any], str]
    prompt: str | None
    """The job's system prompt; None leaves it to the environment's own."""
    renderer: Renderer | None = None
    """Shows messages as a model's chat template writes them."""
    reset: Callable[[], None] = lambda: None
    seated: bool = False
    """Whether a person sits in the opponent's seat, who is shown the game when it is their turn."""

    def begin(self, observation: Any) -> None:
        """Show what stands at the start."""
        from tinkergym.loop.environment_host import system_prompt_of
        from tinkergym.messages import opening_messages

        messages = opening_messages(
            _messages(observation), job_prompt=self.prompt, environment_prompt=system_prompt_of(self.env)
        )
        if self.renderer is not None:
            _say("prompt", self.renderer.decode(self.renderer.start(messages)))
        else:
            self._show([m for m in messages if m["role"] == "system" or not self.seated])

    def go_on(self, observation: Any) -> None:
        """Show what the environment answered."""
        messages = _messages(observation)
        if self.renderer is not None:
            ids = self.renderer.continuation(messages, answer_closed=True)
            _say("prompt", self.renderer.decode(ids))
        elif not self.seated:
            self._show(messages)

    def _show(self, messages: list[Message]) -> None:
        for message in messages:
            _say("environment" if message["role"] == "user" else message["role"], message["content"])


def _episodes(table: _Table, seeds: range) -> None:
    returns: list[float] = []
    for seed in seeds:
        table.reset()
        returns.append(_episode(table, seed))
    if len(returns) > 1:
        mean = sum(returns) / len(returns)
        out.print(f"{len(returns)} episodes, mean return {mean:+.3f}", highlight=False)


def _episode(table: _Table, seed: int) -> float:
    out.rule(f"episode with seed {seed}", style="dim")
    observation, _ = table.env.reset(seed=seed)
    table.begin(observation)
    total = 0.0
    for _ in range(MOST_STEPS):
        action = table.act(observation)
        if table.act is not _ask_for_action:
            _say("policy", action)
        observation, reward, terminated, truncated, _ = table.env.step(action)
        total += float(reward)
        if terminated or truncated:
            if text := messages_text(_messages(observation)):
                _say("the policy is told" if table.seated else "environment", text)
            how = "the task ended" if terminated else "cut off by a limit"
            out.print(f"{'its ' if table.seated else ''}return {total:+g} ({how})\n", highlight=False)
            return total
        table.go_on(observation)
    out.print(f"left after {MOST_STEPS} steps, return {total:+g}\n", highlight=False)
    return total


def _say(who: str, text: str) -> None:
    style = {"policy": "green", "system": "dim"}.get(who, "cyan")
    out.print(f"[{style}]{who}[/]", highlight=False)
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def _ask_for_action(_: object) -> str:
    lines = [out.input("[green]you[/] > ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(out.input("... > "))
    return "\n".join(lines)


def _ask_for_move(board: str) -> str:
    return out.input(f"[cyan]your move[/]\n{escape(board)}\n> ", emoji=False)


def _messages(observation: Any) -> list[Message]:
    try:
        return observation_messages(observation)
    except (TypeError, ValueError):  # nothing that a policy could read, and still worth a look
        return [user(str(observation))]
