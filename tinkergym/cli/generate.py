"""`tinkergym generate`: completions of a dataset's rows, into a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tinkergym.cli.console import INTERRUPTED, err, out
from tinkergym.cli.field_options import SettingOption, with_decoding_options
from tinkergym.cli.json_output import AsJson, emit
from tinkergym.cli.key_value_settings import parse_settings
from tinkergym.cli.named_policy import named_policy
from tinkergym.cli.options import CUT, TemplateSettings, options_said, refuse_options
from tinkergym.errors import InvalidRequestError
from tinkergym.remote.client import Client
from tinkergym.remote.generating import IN_FLIGHT, Generated
from tinkergym.remote.job import Job

_OF_A_FILE = frozenset({"--resume", "--token-ids", "--in-flight"})
_PolicyName = Annotated[
    str, typer.Argument(metavar="POLICY", help="JOB_ID, JOB_ID@40, JOB_ID/AGENT@best or MODEL.")
]
_Data = Annotated[
    str, typer.Option(metavar="FILE", help="A data file or folder, in any layout that training reads.")
]
_OutFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="JSON lines; Parquet if it ends in .parquet.")
]
_Detach = Annotated[
    bool, typer.Option("--detach", help="Let the service do it as a job, and return at once.")
]
_Samples = Annotated[int, typer.Option("-n", "--samples", help="Completions per row.", min=1)]
_Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="A completion ends at this text; repeatable.")
]
_Resume = Annotated[bool, typer.Option("--resume", help="Continue FILE where an earlier run stopped.")]
_Tools = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A JSON list of functions, for rows without tools.")
]
_Keep = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="A column to copy to the results; repeatable.")
]
_Ignore = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="A column to skip; repeatable.")]
_TokenIds = Annotated[bool, typer.Option("--token-ids", help="Write the sampled token ids, too.")]
_Logprobs = Annotated[bool, typer.Option("--logprobs", help="Write their logprobs, too.")]
_InFlight = Annotated[
    int | None, typer.Option(help=f"The most requests at a time. (default: {IN_FLIGHT})", min=1)
]


@with_decoding_options(
    (
        SettingOption(
            "temperature", "Sampling temperature; 0 takes the likeliest token. (default: as trained)"
        ),
        SettingOption("max_turn_tokens", "The longest completion. (default: as trained)", name="max-tokens"),
        SettingOption("seed", "Each completion's seed is made of it and the row's number. (default: 0)"),
        *CUT,
    )
)
def generate(
    policy: _PolicyName,
    *,
    ctx: typer.Context,
    data: _Data,
    out_file: _OutFile = None,
    detach: _Detach = False,
    samples: _Samples = 1,
    decoding: dict[str, Any],
    stop: _Stop = None,
    resume: _Resume = False,
    tools: _Tools = None,
    keep: _Keep = None,
    ignore: _Ignore = None,
    token_ids: _TokenIds = False,
    logprobs: _Logprobs = False,
    in_flight: _InFlight = None,
    template_set: TemplateSettings = None,
    as_json: AsJson = False,
) -> None:
    """Sample completions of a dataset's rows, one line each, in the order of the rows.

    The same command with --resume continues a run that was stopped, by whatever: no line is lost or written
    twice. A row that cannot be sampled is a line with an error. With --detach it is a job of the service, and
    `tinkergym jobs results JOB_ID --out FILE` writes what is done.

    Example: tinkergym generate JOB_ID@best --data questions.jsonl --out answers.jsonl -n 4 --max-tokens 200
    """
    given: dict[str, Any] = {**decoding, "n": samples, "tools": _tools_in(tools), "logprobs": logprobs}
    given |= {"keep": keep or (), "ignore": ignore or (), **({"stop": stop} if stop else {})}
    about = {"template_variables": parse_settings(template_set)} if template_set else {}
    if (out_file is None) != detach:
        raise InvalidRequestError("give --out FILE, or --detach for a job", field="--out")
    with Client() as client:
        found = named_policy(client, policy, about)
        if out_file is None:
            idle = [option for option in options_said(ctx).values() if option in _OF_A_FILE]
            refuse_options(idle, "has no effect with --detach")
            _started(client.infer(found, data, **given), as_json=as_json)
            return
        given |= {"resume": resume, "token_ids": token_ids, "in_flight": in_flight or IN_FLIGHT}
        try:
            done = found.generate(data, out_file, **given)
        except KeyboardInterrupt:
            err.print("\nstopped; the same command with --resume continues", highlight=False)
            raise typer.Exit(INTERRUPTED) from None
    _report(done, as_json=as_json)


def _started(job: Job, *, as_json: bool) -> None:
    if as_json:
        emit(job.view())
        return
    out.print(
        f"{job.id} is queued; `tinkergym jobs watch {job.id}` follows it, and "
        f"`tinkergym jobs results {job.id} --out FILE` writes what is done",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _report(done: Generated, *, as_json: bool) -> None:
    if as_json:
        emit(dataclasses.asdict(done) | {"path": str(done.path)})
        return
    new = done.completions - done.continued_from
    failed = f", {done.errors} with an error" if done.errors else ""
    out.print(
        f"{done.path}: {done.completions} completions of {done.policy}{failed}; {done.prompt_tokens} prompt "
        f"and {done.completion_tokens} completion tokens; {new} new in {done.seconds:.1f} s",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _tools_in(file: Path | None) -> list[dict[str, Any]]:
    if file is None:
        return []
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{file} cannot be read: {error}", field="--tools") from error
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InvalidRequestError(f"{file} is not a JSON list of functions", field="--tools")
    return found
