"""Follow a job on the terminal: its progress until it ends, and how to see it again."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from tinkergym.cli.console import INTERRUPTED, out
from tinkergym.cli.json_output import emit
from tinkergym.display.progress import TrainingDisplay
from tinkergym.remote.client import Client
from tinkergym.remote.job import Job
from tinkergym.reporting.report import play_command


def follow(job: Job, env: Sequence[str] = (), *, as_json: bool = False) -> None:
    """Show a job's progress until it ends; Ctrl-C leaves it running.

    Args:
        job: The job.
        env: The environments as given on the command line, to repeat them in suggested commands.
        as_json: Print only events, as JSON lines.

    Raises:
        JobFailedError: It failed.
    """
    try:
        if as_json:
            for event in job.events():
                emit(event)
        else:
            with TrainingDisplay(job.id, job.spec, console=out) as display:
                display.watch(job.events())
    except KeyboardInterrupt:
        _say_how_to_go_on(job, env)
        job.close()
        raise typer.Exit(INTERRUPTED) from None
    view = job.wait(progress=False, warn=False)  # The display has shown the warnings.
    if as_json:
        return
    out.print(
        f"done: step {view.step} of {view.spec.steps}, policy version {view.policy_version}", highlight=False
    )
    for checkpoint in job.checkpoints()[-1:]:
        out.print(f"checkpoint, on the service's machine: {checkpoint.path}", highlight=False, soft_wrap=True)
    if job.spec.played:
        out.print(
            f"play it: {play_command(job, next(iter(env), None))}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def follow_or_detach(
    job: Job, env: Sequence[str] = (), *, detach: bool, as_json: bool, client: Client
) -> None:
    """Follow a new job, or say how to see it later. Prints an estimate first, if there is one."""
    known = None if as_json else client.known_estimate(job.spec)
    if known is not None:
        out.print(f"estimate: {known}", markup=False, highlight=False, soft_wrap=True)
    if not detach:
        follow(job, env, as_json=as_json)
        return
    if as_json:
        emit(job.view())
        if job.spec.played and job.spec.played_by == "client":
            job.close()
        return
    attach = attach_command(job, env)
    out.print(f"{job.id} has started; see it with: {attach}", highlight=False, soft_wrap=True)
    if job.spec.played and job.spec.played_by == "client":
        job.close()
        out.print("It waits for a client to play its episodes, which `attach` does.")


def attach_command(job: Job, env: Sequence[str]) -> str:
    """Return the command that follows a job, and plays its episodes if this side plays them."""
    ours = "".join(f" --env {one}" for one in env if ":" in one)
    return f"tinkergym jobs attach {job.id}{ours}"


def _say_how_to_go_on(job: Job, env: Sequence[str]) -> None:
    ours = job.spec.played and job.spec.played_by != "server"
    goes_on = "waits for a client to play its episodes" if ours else "goes on"
    out.print(
        f"\nThe job {goes_on}.\n"
        f"  see it again:  {attach_command(job, env)}\n"
        f"  end it:        tinkergym jobs cancel {job.id}",
        highlight=False,
        soft_wrap=True,
    )
