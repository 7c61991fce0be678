"""`tinkergym jobs`: list, show, follow, pause, change, cancel and delete jobs, and fetch checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tinkergym.cli.console import out, print_rows
from tinkergym.cli.following import follow
from tinkergym.cli.json_output import AsJson, AsJsonLines, emit
from tinkergym.cli.key_value_settings import parse_settings
from tinkergym.cli.named_environment import find_environment
from tinkergym.cli.options import ReportTo
from tinkergym.display.job_table import job_rows
from tinkergym.display.progress import TrainingDisplay, update_words
from tinkergym.remote.client import Client
from tinkergym.schema.events import MOST_JOBS_LISTED, JobState

app = typer.Typer(
    help="List jobs, follow them, pause, change, cancel and delete them, fetch their checkpoints."
)

JobId = Annotated[str, typer.Argument(metavar="JOB_ID", help="An id or a name from `tinkergym jobs`.")]

Limit = Annotated[int, typer.Option(help="The most jobs to list.", min=1, max=MOST_JOBS_LISTED)]
Search = Annotated[
    str,
    typer.Option(
        "--search", "-s", metavar="WORDS", help="Words in name, id, environment, model, state or tags."
    ),
]
Name = Annotated[str, typer.Option(metavar="TEXT", help="Part of the name.")]
State = Annotated[list[JobState] | None, typer.Option(help="In this state; repeatable.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="With this tag; repeatable.")]
EnvironmentPart = Annotated[str, typer.Option("--env", metavar="TEXT", help="Part of the environment's id.")]
ModelPart = Annotated[str, typer.Option("--model", metavar="TEXT", help="Part of the model's name.")]
Archived = Annotated[bool, typer.Option("--archived", help="List archived jobs, too.")]
Sort = Annotated[
    str, typer.Option(metavar="ORDER", help="newest, changed, reward, duration, progress or name.")
]


@app.command("list", help="List your jobs; the same as `tinkergym jobs`.")
@app.callback(invoke_without_command=True)
def jobs(
    ctx: typer.Context,
    *,
    search: Search = "",
    name: Name = "",
    state: State = None,
    tag: Tags = None,
    env: EnvironmentPart = "",
    model: ModelPart = "",
    archived: Archived = False,
    sort: Sort = "newest",
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List your jobs with reward, duration and the reason of a failure; search and sort them.

    Example: tinkergym jobs --state failed --env tictactoe --sort reward
    """
    if ctx.invoked_subcommand is None:
        given = {key: value for key, value in ctx.params.items() if key != "as_json"}
        _list(given | {"state": state or [], "tag": tag or []}, as_json=as_json)
    elif as_json:  # `jobs --json show JOB_ID` is the same as `jobs show JOB_ID --json`.
        ctx.default_map = {ctx.invoked_subcommand: {"as_json": True}}


def _list(given: dict[str, Any], *, as_json: bool) -> None:
    filters = {"environment" if key == "env" else key: value for key, value in given.items()}
    with Client() as client:
        found = client.jobs(**filters)
    if as_json:
        emit({"jobs": found, "has_older": found.has_older})
        return
    if not found:
        chosen = any(value for key, value in filters.items() if key not in ("limit", "sort"))
        none = "no jobs yet; start one with: tinkergym train board/TicTacToeVs-v0 --steps 60"
        out.print("no job matches; `tinkergym jobs` lists all" if chosen else none, soft_wrap=True)
        return
    print_rows(job_rows(found))
    if found.has_older:
        limit = filters["limit"]
        command = f"tinkergym jobs --limit {min(2 * limit, MOST_JOBS_LISTED)}"
        how = command if limit < MOST_JOBS_LISTED else f"client.jobs(before={found[-1].job_id!r}) in a script"
        out.print(f"older ones: {how}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def label(
    job_id: JobId,
    *,
    name: Annotated[str | None, typer.Option(help="A new name.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Add this tag; repeatable.")] = None,
    remove_tag: Annotated[list[str] | None, typer.Option(help="Remove this tag; repeatable.")] = None,
    note: Annotated[str | None, typer.Option(help="Any text.")] = None,
    archive: Annotated[
        bool | None, typer.Option("--archive/--restore", help="Whether lists leave the job out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Name, tag or archive a job, of any kind and in any state.

    Example: tinkergym jobs label job-0123456789abcdef --name "lower rate" --tag sweep
    """
    with Client() as client:
        job = client.job(job_id)
        tags = [
            one for one in dict.fromkeys([*job.label().tags, *(tag or [])]) if one not in (remove_tag or [])
        ]
        labels = job.label(name=name, tags=tags, note=note, archived=archive)
    if as_json:
        emit(labels)
        return
    shown = [
        labels.name,
        *(f"[{one}]" for one in labels.tags),
        labels.note,
        "archived" if labels.archived else "",
    ]
    words = " ".join(filter(None, shown)) or "no labels"
    out.print(f"{job.id}: {words}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def show(job_id: JobId, as_json: AsJson = False) -> None:
    """Show a job: settings, progress, metrics, alarms, checkpoints, and what to type next.

    With --json: its state and its complete configuration.
    """
    with Client() as client:
        job = client.job(job_id)
        if as_json:
            emit(job.view())
            return
        for line in job.overview().lines():
            out.print(line, markup=False, highlight=False, soft_wrap=True)


@app.command()
def compare(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB_ID...", help="Two to six ids or names.")],
    *,
    metric: Annotated[
        str, typer.Option(help="The metric to draw. (default: the mean reward, or the loss)")
    ] = "",
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the curves as a picture, too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare jobs: settings that differ, curves on one axis, newest evaluations with their difference.

    Example: tinkergym jobs compare "lower rate" job-0123456789abcdef --png both.png
    """
    with Client() as client:
        found = client.compare(*job_ids)
    if as_json:
        emit(found.to_json())
    else:
        for line in found.lines(metric):
            out.print(line, markup=False, highlight=False, soft_wrap=True)
    if png is not None:
        said = found.to_png(png, metric)
        if not as_json:
            out.print(said, markup=False, highlight=False, soft_wrap=True)


@app.command()
def page(
    job_id: JobId,
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="A folder, made if it does not exist.")],
    as_json: AsJson = False,
) -> None:
    """Write a run as a web page that opens without a service, runs no script and loads nothing.

    Example: tinkergym jobs page job-0123456789abcdef run
    """
    with Client() as client:
        written = client.job(job_id).page(folder)
    if as_json:
        emit({"page": written})
        return
    out.print(f"{written}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def attach(
    job_id: JobId,
    env: Annotated[
        list[str] | None,
        typer.Option(help="module:ClassName, for a job that was started with your own class; repeatable."),
    ] = None,
    report_to: ReportTo = None,
    as_json: AsJsonLines = False,
) -> None:
    """Follow a job's progress, and play its episodes if a client plays them."""
    with Client() as client:
        here = [find_environment(one) for one in env or []]
        job = client.attach(job_id, here or None, report_to=report_to or ())
        follow(job, env or [], as_json=as_json)


@app.command()
def cancel(job_id: JobId, as_json: AsJson = False) -> None:
    """End a job; its checkpoints are kept."""
    with Client() as client:
        view = client.job(job_id).cancel()
    if as_json:
        emit(view)
        return
    if view.state.final:
        text = f"has ended ({view.state})"
    else:
        text = f"will end after its current work ({view.state})"
    out.print(f"{job_id} {text}", highlight=False)


@app.command()
def pause(job_id: JobId, as_json: AsJson = False) -> None:
    """Pause a job: after its step it saves a checkpoint and gives up its place."""
    with Client() as client:
        view = client.job(job_id).pause()
    if as_json:
        emit(view)
        return
    when = "is paused" if view.state is JobState.PAUSED else "will pause after its current work"
    out.print(
        f"{job_id} {when}; continue with `tinkergym jobs resume {job_id}`", highlight=False, soft_wrap=True
    )


@app.command()
def resume(job_id: JobId, as_json: AsJson = False) -> None:
    """Continue a paused job where it stopped."""
    with Client() as client:
        view = client.job(job_id).resume()
    if as_json:
        emit(view)
        return
    out.print(f"{job_id} continues ({view.state})", highlight=False, soft_wrap=True)


@app.command()
def update(
    job_id: JobId,
    setting: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", help="E.g. learning_rate=0.0005 or budget.hours=4; repeatable."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Change settings of a job while it trains, from its next train step on.

    Example: tinkergym jobs update job-0123456789abcdef --set learning_rate=0.0005
    """
    with Client() as client:
        job, settings = client.job(job_id), parse_settings(setting)
        budget = getattr(job.spec, "budget", None)
        if budget is not None and isinstance(settings.get("budget"), dict):
            # Only the bound that was named changes: the whole budget is one setting.
            bounds = {**budget.model_dump(), **settings["budget"]}
            settings["budget"] = None if all(bound is None for bound in bounds.values()) else bounds
        before = len(job.view().updates)
        view = job.update(**settings)
    if as_json:
        emit(view)
        return
    if len(view.updates) == before:
        out.print("nothing changed: the job has these settings")
    for one in view.updates[before:]:
        if [change.name for change in one.changes] == ["budget"]:
            when = "at once"
        else:
            when = "from the next step" if one.from_step is None else f"from step {one.from_step}"
        out.print(f"{when}: {update_words(one)}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def watch(job_id: JobId, as_json: AsJsonLines = False) -> None:
    """Follow a job's progress, without playing its episodes; Ctrl-C leaves it running."""
    with Client() as client:
        follow(client.job(job_id), as_json=as_json)


@app.command()
def logs(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")] = False,
    as_json: AsJsonLines = False,
) -> None:
    """Print a job's log: states, steps, evaluations, changes of settings, checkpoints, warnings."""
    with Client() as client:
        job = client.job(job_id)
        events = job.events() if follow else job.log()
        if as_json:
            for event in events:
                emit(event)
        else:
            with TrainingDisplay(job.id, job.spec, console=out, live=False) as display:
                display.watch(events)


@app.command()
def delete(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB_ID...", help="Ids from `tinkergym jobs`.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJsonLines = False,
) -> None:
    """Delete ended jobs with their checkpoints. This cannot be undone."""
    what = job_ids[0] if len(job_ids) == 1 else f"{len(job_ids)} jobs"
    if not yes:
        typer.confirm(f"Delete {what} with all checkpoints?", abort=True, err=as_json)
    with Client() as client:
        for job_id in dict.fromkeys(job_ids):
            freed = client.job(job_id).delete()
            if as_json:
                emit({"job_id": job_id, "bytes": freed})
            else:
                out.print(f"{job_id} is deleted ({freed / 2**20:.1f} MiB)", highlight=False)


@app.command()
def checkpoints(job_id: JobId, as_json: AsJson = False) -> None:
    """List a job's checkpoints."""
    with Client() as client:
        found = client.job(job_id).checkpoints()
    if as_json:
        emit({"checkpoints": found})
        return
    for checkpoint in found:
        size = sum(checkpoint.files.values())
        whose = f"{checkpoint.agent}  " if checkpoint.agent else ""
        out.print(
            f"{whose}step {checkpoint.step}  {size / 2**20:.1f} MiB  {checkpoint.path}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    if found:
        out.print(
            f"on the service's machine; fetch one with: tinkergym jobs download {job_id} --step STEP",
            highlight=False,
            soft_wrap=True,
        )
    else:
        out.print("no checkpoints yet")


@app.command()
def download(
    job_id: JobId,
    to: Annotated[Path, typer.Option(help="The folder to put it into.")] = Path("checkpoints"),
    step: Annotated[int | None, typer.Option(help="Of which step. (default: the newest)")] = None,
    agent: Annotated[str, typer.Option(help="Whose policy, where the job trains several.")] = "",
    as_json: AsJson = False,
) -> None:
    """Fetch a checkpoint and check every file's SHA-256."""
    with Client() as client:
        folder = client.job(job_id).download(step, to, agent=agent)
    if as_json:
        emit({"folder": folder})
        return
    out.print(f"{folder}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def results(
    job_id: JobId,
    out_file: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="JSON lines; Parquet if it ends in .parquet.")
    ],
    token_ids: Annotated[bool, typer.Option("--token-ids", help="Write the sampled token ids, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write what an inference job has done so far; the same command adds what is missing."""
    with Client() as client:
        job = client.job(job_id)
        lines = job.write_results(out_file, token_ids=token_ids)
        state = job.state
    if as_json:
        emit({"path": out_file, "completions": lines, "state": state})
        return
    out.print(
        f"{out_file}: {lines} completions; the job is {state}", markup=False, highlight=False, soft_wrap=True
    )


@app.command()
def promote(
    job_id: JobId,
    version: Annotated[str, typer.Argument(help="40, step:40, best or latest; it needs a checkpoint.")],
    *,
    name: Annotated[str, typer.Option(help="What requests have as model. (default: the job's name)")] = "",
    agent: Annotated[str, typer.Option(help="Whose policy, where the job trains several.")] = "",
    share: Annotated[
        float, typer.Option(help="The share of the requests; the rest stays with the version there is now.")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Let a name of the OpenAI API serve a version of a job's policy.

    Example: tinkergym jobs promote job-0123456789abcdef 60 --name support --share 0.1
    """
    with Client() as client:
        made = client.job(job_id).promote(version, name=name, agent=agent, share=share)
    if as_json:
        emit(made)
        return
    out.print(f"{made.name} serves {made.words}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def names(
    remove: Annotated[str, typer.Option(metavar="NAME", help="Remove this name; its policy stays.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the names to which versions were promoted, and what they serve."""
    with Client() as client:
        found = client.remove_name(remove) if remove else client.served_names()
    if as_json:
        emit({"names": found})
        return
    for one in found:
        out.print(f"{one.name} serves {one.words}", markup=False, highlight=False, soft_wrap=True)
    if not found:
        out.print("no names; `tinkergym jobs promote JOB_ID VERSION --name NAME` makes one")


@app.command()
def certificate(
    job_id: JobId,
    to: Annotated[Path, typer.Option(help="The target folder.")] = Path(),
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Include the adapter, the episodes and the events.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run's certificate, which a colleague can check: JSON and a page, or a bundle."""
    with Client() as client:
        written = client.job(job_id).certificate(to, bundle=bundle)
    paths = [path for path in (written.json, written.page, written.bundle) if path is not None]
    if as_json:
        emit({"files": paths, "checks": written.checks, "sha256": written.certificate.sha256})
        return
    for check in written.checks:
        line = f"{check.verdict.replace('_', ' '):9}  {check.name}: {check.text}"
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    for path in paths:
        out.print(f"{path}", markup=False, highlight=False, soft_wrap=True)
