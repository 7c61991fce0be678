"""`tinkergym train-agent`: train a program that speaks the OpenAI API, in any language, as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tinkergym.cli.field_options import with_job_options
from tinkergym.cli.following import follow_or_detach
from tinkergym.cli.json_output import AsJsonLines
from tinkergym.cli.train import EPISODES
from tinkergym.recording.command_program import CommandProgram
from tinkergym.remote.client import Client
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train
from tinkergym.tasks.jsonl import JsonlTasks

_Command = Annotated[
    list[str], typer.Argument(metavar="-- COMMAND...", help="The program and its arguments.")
]
_Tasks = Annotated[
    Path | None,
    typer.Option("--tasks", metavar="FILE", help="JSON lines; each episode gets one as TINKERGYM_TASK."),
]
_Roles = Annotated[
    list[str] | None,
    typer.Option("--role", metavar="NAME", help="A role with its own policy; repeatable. (default: agent)"),
]
_Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse calls that cannot be trained on, instead of counting them.")
]


@with_job_options(RLSpec, "command", EPISODES)
def train_agent(
    command: _Command,
    *,
    tasks: _Tasks = None,
    roles: _Roles = None,
    strict: _Strict = False,
    settings: dict[str, Any],
    as_json: AsJsonLines = False,
) -> None:
    """Train a program that speaks the OpenAI API as it is.

    It is started once per episode with OPENAI_BASE_URL, OPENAI_API_KEY and TINKERGYM_TASK set, and its last
    line is the reward: a number, or JSON with one per role. It runs on this machine.

    Example: tinkergym train-agent --tasks tasks.jsonl --model nano-instruct --steps 60 -- python my_agent.py
    """
    with Client() as client:
        job = client.train_agent(
            CommandProgram(command),
            None if tasks is None else JsonlTasks(tasks),
            roles=None if roles is None else {role: Train() for role in roles},
            strict=strict,
            **settings,
        )
        follow_or_detach(job, detach=False, as_json=as_json, client=client)
