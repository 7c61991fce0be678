"""`tinkergym export`: write a trained policy as files for transformers and PEFT."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from tinkergym.cli.console import out
from tinkergym.cli.json_output import AsJson, emit
from tinkergym.errors import InvalidRequestError
from tinkergym.remote.client import Client
from tinkergym.schema.ids import PolicyRef


def export(
    policy: Annotated[
        str,
        typer.Argument(metavar="JOB[@VERSION]", help="A job, or one of its versions. (default: the newest)"),
    ],
    to: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that does not exist yet.")],
    *,
    merge: Annotated[
        bool, typer.Option("--merge", help="Write a whole model instead of an adapter; needs torch here.")
    ] = False,
    base: Annotated[
        str | None,
        typer.Option(
            help="With --merge: the base model's directory or hub id, if it is not found automatically."
        ),
    ] = None,
    push_to_hub: Annotated[
        str | None,
        typer.Option(
            "--push-to-hub", metavar="OWNER/NAME", help="Then upload the folder to the Hugging Face hub."
        ),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="With --push-to-hub: a new repository is not private.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a trained policy to a folder that transformers and PEFT load.

    Every file's SHA-256 is checked, and the folder appears only when it is complete.

    Example: tinkergym export job-74e0b0387b33b183@40 my-policy --merge
    Example: tinkergym export job-74e0b0387b33b183 my-policy --push-to-hub me/my-policy
    """
    if base and not merge:
        raise InvalidRequestError("--base needs --merge", hint="add --merge", field="base")
    if public and not push_to_hub:
        raise InvalidRequestError("--public needs --push-to-hub", hint="add it", field="public")
    with Client() as client:
        named = policy if PolicyRef.is_meant(policy) else client.job(policy).id
        job_id, version, agent = client.trained_policy(PolicyRef.parse(named))
        done = client.job(job_id).export(to, version=version, merge=merge, base=base, agent=agent)
    pushed = done.push_to_hub(push_to_hub, private=not public) if push_to_hub else ""
    if as_json:
        emit(dataclasses.asdict(done) | ({"pushed": pushed} if pushed else {}))
        return
    kind = "adapter" if done.is_adapter else "whole model"
    out.print(
        f"{done.folder}: version {done.policy_version}, {kind}, {done.bytes / 2**20:.1f} MiB",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if pushed:
        out.print(f"pushed: {pushed}", markup=False, highlight=False, soft_wrap=True)
    if done.without_tokenizer:
        out.print(f"without tokenizer: {done.without_tokenizer}", markup=False, soft_wrap=True)
    if done.without_tools:
        out.print(f"the system prompt lacks the tools: {done.without_tools}", markup=False, soft_wrap=True)
