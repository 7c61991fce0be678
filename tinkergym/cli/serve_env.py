"""`tinkergym serve-env`: serve an environment of this machine to everyone who has its token."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tinkergym.cli.console import out
from tinkergym.cli.json_output import AsJsonLines, emit
from tinkergym.cli.named_environment import find_environment
from tinkergym.errors import InvalidRequestError, ServiceUnavailableError
from tinkergym.rollout.local_environment import describe
from tinkergym.schema.names import is_environment_url
from tinkergym.schema.parsing import parse
from tinkergym.serving.server import serve
from tinkergym.serving.server_settings import ServerSettings
from tinkergym.serving.server_token import Token, choose_token
from tinkergym.tools.sandbox.isolation_rule import PythonToolSetting, requiring

_TokenText = Annotated[
    str | None,
    typer.Option(help="The token that clients must present. (default: $TINKERGYM_ENV_TOKEN, else generated)"),
]
_PythonToolOption = Annotated[
    PythonToolSetting,
    typer.Option(
        help="How Python that policies write (PythonTool) is isolated: namespaces refuses it where the "
        "machine offers none; limits does not stop code that tries to escape; off refuses it."
    ),
]
_Processes = Annotated[
    bool,
    typer.Option("--processes", help="Use a process per environment, which can be killed if it hangs."),
]


def serve_env(
    environment: Annotated[
        str,
        typer.Argument(metavar="ENV", help="An environment's id, see `tinkergym envs`; or module:ClassName."),
    ],
    *,
    capacity: Annotated[
        int, typer.Option(help="The most environments at once; further clients get `busy`.")
    ] = 64,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")] = 8300,
    token: _TokenText = None,
    token_file: Annotated[Path | None, typer.Option(help="A file that contains the token.")] = None,
    idle_timeout: Annotated[
        float, typer.Option(help="Seconds without a call after which a session is closed.")
    ] = 300.0,
    lease: Annotated[
        float, typer.Option(help="Seconds for which the place of a vanished client is kept.")
    ] = 30.0,
    step_timeout: Annotated[
        float, typer.Option(help="Time limit for one call to the environment, in seconds.")
    ] = 60.0,
    max_message_bytes: Annotated[int, typer.Option(help="Longest message, in bytes.")] = 16 * 2**20,
    kwargs: Annotated[str, typer.Option(help="Arguments of the environment, as a JSON object.")] = "{}",
    processes: _Processes = False,
    python_tool: _PythonToolOption = "namespaces",
    as_json: AsJsonLines = False,
) -> None:
    """Serve an environment to other machines until Ctrl-C.

    On the other machine, gymnasium.make("tinkergym/Remote-v0", url=...) plays it as if it were installed
    there.
    """
    _require_serving()

    chosen = choose_token(token, token_file)
    settings = parse(
        ServerSettings,
        {
            **_named(environment),
            "kwargs": _json_object(kwargs),
            "host": host,
            "port": port,
            "token": chosen.text,
            "capacity": capacity,
            "idle_timeout_seconds": idle_timeout,
            "lease_seconds": lease,
            "step_timeout_seconds": step_timeout,
            "max_message_bytes": max_message_bytes,
            "processes": processes,
        },
    )
    show = _show_ready_json if as_json else _show_ready
    with requiring(python_tool):
        serve(settings, lambda url, description: show(url, description, settings, chosen))
    if as_json:
        emit({"event": "stopped"})
    else:
        _say("stopped")


def _show_ready(url: str, description: dict[str, Any], settings: ServerSettings, chosen: Token) -> None:
    _say(f"serving {description['id']}, {settings.capacity} at a time, on {url}")
    if chosen.drawn:
        _say(f"token (shown only now): {chosen.text}")
    if not settings.only_this_machine:
        _say(
            "other machines can connect, and without TLS the token is sent unencrypted: put a TLS proxy "
            "in front"
        )
    _say(f'play it with: gymnasium.make("tinkergym/Remote-v0", url="{url}", token="...")')


def _show_ready_json(url: str, description: dict[str, Any], settings: ServerSettings, chosen: Token) -> None:
    told = {"environment": description["id"], "capacity": settings.capacity, "url": url}
    emit({"event": "serving", **told, **({"token": chosen.text} if chosen.drawn else {})})


def _require_serving() -> None:
    missing = [
        name for name in ("fastapi", "uvicorn", "websockets") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise ServiceUnavailableError(
            f"serving environments needs {', '.join(missing)}",
            hint="pip install '.[serving]' in a checkout of tinkergym",
        )


def _named(environment: str) -> dict[str, str]:
    """Return the id to serve it under, and its location if no pack registers it."""
    if is_environment_url(environment):
        raise InvalidRequestError("is already served", hint="hand its address on", field="ENV")
    found = find_environment(environment)  # This raises with the known names if the id is unknown.
    if isinstance(found, str):
        return {"environment_id": found}
    return {"environment_id": describe(found).ref.id, "entry_point": environment}


def _say(line: str) -> None:
    out.print(line, markup=False, highlight=False, soft_wrap=True)
    out.file.flush()


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"{text[:200]!r} is not valid JSON: {error}",
            hint="""write --kwargs '{"size": 3}'""",
            field="kwargs",
        ) from None
    if not isinstance(value, dict):
        raise InvalidRequestError(
            "must be a JSON object", hint="""write --kwargs '{"size": 3}'""", field="kwargs"
        )
    return value
