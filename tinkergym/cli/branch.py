"""`tinkergym branch`: continue a stored episode from one of its turns, by a policy or by hand."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tinkergym.cli.json_output import AsJson, emit
from tinkergym.cli.named_environment import find_environment
from tinkergym.cli.replay import print_line
from tinkergym.remote.branching import Branches, seat_of
from tinkergym.remote.client import Client
from tinkergym.remote.job import Job
from tinkergym.schema.evaluation import MOST_BRANCHES
from tinkergym.schema.ids import EpisodeId
from tinkergym.trajectory.content_parts import content_text
from tinkergym.trajectory.trajectory import StopReason, Trajectory


def branch(
    episode: Annotated[
        str, typer.Argument(metavar="EPISODE", help="An episode's id, JOB_ID:STEP:INDEX, as its page shows.")
    ],
    *,
    turn: Annotated[int, typer.Option(help="The first turn to play anew, counted from 1.", min=1)],
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="JOB_ID",
            help="Who answers from there: JOB_ID@40, or a model. (default: the job's newest version)",
        ),
    ] = None,
    n: Annotated[int, typer.Option("--n", help="How many continuations.", min=1, max=MOST_BRANCHES)] = 4,
    agent: Annotated[str, typer.Option(help="The seat, in an episode with several.")] = "",
    action: Annotated[
        list[str] | None,
        typer.Option(help="Your own answer for the first turn played anew, and so on; repeatable."),
    ] = None,
    by_hand: Annotated[
        bool, typer.Option("--by-hand", help="Type every answer yourself, until the episode ends.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature of the seat. (default: as in training)", min=0)
    ] = None,
    seed: Annotated[int, typer.Option(help="Another one gives other continuations.", min=0)] = 0,
    env: Annotated[
        str | None, typer.Option(help="module:ClassName, for a job that was started with your own class.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Continue a stored episode from one of its turns: by hand, or with a checkpoint or a model.

    The environment is reset with the episode's seed and gets its actions before the turn; what it shows is
    compared with the record, token by token.

    Example: tinkergym branch job-ID:3:17 --turn 2 --policy job-ID@40 --n 8
    """
    with Client() as client:
        job = client.job(EpisodeId.parse(episode).job.job_id)
        common: dict[str, Any] = {"agent": agent, "env": find_environment(env) if env else None}
        if by_hand:
            found = _typed(job, episode, turn, list(action or []), common)
        else:
            found = job.branch(
                episode,
                turn,
                policy=policy,
                n=n,
                actions=action or [],
                temperature=temperature,
                seed=seed,
                **common,
            )
    if as_json:
        shown = {"turn": found.turn, "returns": found.returns, "trajectories": found.trajectories}
        emit({"original_return": found.original.episode_return, **shown})
        return
    for number, one in enumerate(found.trajectories):
        print_line(f"continuation {number}: return {one.episode_return:g}, {one.stop_reason.value}", "bold")
        _show(one, turn)
    print_line(str(found), "bold")


def _typed(job: Job, episode: str, turn: int, actions: list[str], common: dict[str, Any]) -> Branches:
    """Play on by hand. Each answer replays the episode up to what the environment shows next."""
    seat = seat_of(job.stored_episode(episode), common["agent"], turn)
    if not actions and turn <= len(seat.turns):
        print_line(content_text(seat.turns[turn - 1].observation), "")
    found: Branches | None = None
    while True:
        if actions:
            found = job.branch(episode, turn, n=0, actions=actions, **common)
            (record,) = found.trajectories
            print_line(content_text(record.final_observation), "")
            # The limit after the last answer has no error; one that another seat met ends the game.
            if record.stop_reason is not StopReason.TURN_LIMIT or record.error:
                return found
        try:
            actions = [*actions, typer.prompt("you", prompt_suffix="> ")]
        except typer.Abort:
            if found is None:
                raise
            return found


def _show(record: Trajectory, turn: int) -> None:
    for number, one in enumerate(record.turns[turn - 1 :], start=turn):
        print_line(f"  turn {number}: reward {one.reward:+g}", "dim")
        for text in (content_text(one.observation) if number > turn else "", content_text(one.action)):
            for line in filter(None, text.split("\n")):
                print_line(f"    {line}", "")
