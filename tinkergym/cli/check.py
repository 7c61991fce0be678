"""`tinkergym check`: test what every environment guarantees."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.markup import escape

from tinkergym.cli.console import INTERRUPTED, err, out
from tinkergym.cli.json_output import AsJson, emit
from tinkergym.cli.key_value_settings import parse_settings
from tinkergym.cli.named_environment import environment_maker
from tinkergym.cli.options import EnvironmentId, EnvironmentSettings
from tinkergym.errors import InvalidRequestError
from tinkergym.testing.checks_subject import Subject
from tinkergym.testing.contract_checks import CHECKS, GAME_CHECKS, Outcome, checks_for, run_checks


def check(
    env: EnvironmentId,
    *,
    env_setting: EnvironmentSettings = None,
    kwargs: Annotated[
        str | None, typer.Option(metavar="JSON", help="The environment's arguments as one JSON object.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CHECK", help="Run only the check with this name; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check an environment before you train in it or publish it.

    Runs Gymnasium's checker with warnings as errors (PettingZoo's for a game) and ours: any text is accepted
    as an action, all randomness comes from the seed, episodes are independent, observations contain only what
    is new, the gold action earns the most, and more. Prints a line per check; the exit code is 1 if one
    failed.

    Example: tinkergym check board/TicTacToeVs-v0 --env-set opponent=heuristic
    """
    settings = {**_object(kwargs), **parse_settings(env_setting or [])}
    subject = Subject(make=environment_maker(env, settings))
    chosen = None
    if only:
        known = {check.name for check in (*CHECKS, *GAME_CHECKS)}
        if unknown := sorted(set(only) - known):
            raise InvalidRequestError(
                f"there is no check {unknown[0]!r}",
                hint=f"choose from: {', '.join(sorted(known))}",
                field="--only",
            )
        made = subject.make()
        chosen = [check for check in checks_for(made) if check.name in only]
        made.close()
    results = []
    try:
        for result in run_checks(subject, chosen):
            results.append(result)
            if not as_json:
                _print(result.name, result.what, result.outcome.value, result.message, result.hint)
    except KeyboardInterrupt:
        err.print("\nstopped; the checks above are complete")
        raise typer.Exit(INTERRUPTED) from None
    failed = sum(result.outcome is Outcome.FAILED for result in results)
    if as_json:
        checks = [result.to_json() for result in results]
        emit({"environment": env, "ok": not failed, "checks": checks})
    else:
        counts = [f"{sum(r.outcome is kind for r in results)} {kind.value}" for kind in Outcome]
        out.print(f"{escape(env)}: {', '.join(counts)}", highlight=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


_STYLES = {"ok": "green", "failed": "red", "skipped": "yellow"}


def _print(name: str, what: str, outcome: str, message: str, hint: str) -> None:
    style = _STYLES[outcome]
    told = f"{message} ({hint})" if hint and message else message or what
    out.print(
        f"[{style}]{outcome:7}[/] {name:22} {escape(' '.join(told.split()))}", highlight=False, soft_wrap=True
    )


def _object(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"{text!r} is not valid JSON: {error}", field="--kwargs") from error
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"{text!r} is not a JSON object", hint='write {"size": 4}', field="--kwargs"
        )
    return value
