"""`tinkergym status`: whether the service is complete, and how much memory its models use."""

from __future__ import annotations

from rich.markup import escape

from tinkergym.cli.console import out
from tinkergym.cli.json_output import AsJson, emit
from tinkergym.remote.client import Client


def status(*, as_json: AsJson = False) -> None:
    """Show whether the service is complete, and the memory of each loaded model.

    Memory is only shown to the service's owner.
    """
    with Client() as client:
        health, url = client.health(), client.url
    if as_json:
        emit({"url": url, **health.model_dump()})
        return
    state = f"waiting for {', '.join(health.waiting_for)}" if health.waiting_for else health.status
    rests = f" (not sampled while at rest: {', '.join(health.resting)})" if health.resting else ""
    line = escape(f"{url}: {state}{rests}, tinkergym {health.version}")
    out.print(line, highlight=False, soft_wrap=True)
    if health.operator_key:
        out.print(f"certificates are signed by {health.operator_key}", highlight=False, soft_wrap=True)
    for model, size in sorted(health.memory.items()):
        out.print(f"{size / 1e9:8.2f} GB  {escape(model)}", highlight=False, soft_wrap=True)
        for host in health.engine_hosts:
            if host.model == model:
                where = f"on {host.node}, " if host.node else ""
                line = f"engine host {host.engine_id} {where}heard {host.silent_seconds:.0f} s ago"
                out.print(f"{host.memory_bytes / 1e9:8.2f} GB    {line}", highlight=False, soft_wrap=True)
