"""The supervisor behind `tinkergym serve`: starts the service's processes and keeps them running.

It holds the port and the lock on the data folder, and nothing else. A part that dies is restarted, and when
the supervisor itself ends, in any way, nothing is left running.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from backend.app import data_folder
from backend.app.greeting import Greeting, Notice
from backend.app.listener import listening, url_of
from backend.app.machine_checks import isolation_notice, require_divided_heads, require_gpus
from backend.app.probe import GatewayProbe, SchedulerProbe, answers, scheduler_is_silent
from backend.app.restarted_part import RestartedPart
from backend.catalog.models import without_folder
from backend.config import ServiceConfig, load_config
from backend.external.environment_tokens import adopt_folder
from backend.processes import children as processes
from backend.processes import quick_start
from backend.processes.ends import SERVICE_STOP_SECONDS, wait_for_end
from backend.processes.guardian import guarded
from backend.scheduler.cluster_door import require_cluster
from backend.settings.served_models import require_vllm
from backend.store.blob_check import require_usable
from backend.store.key_rows import LOCAL_TENANT
from backend.store.place import database_file
from backend.store.store import Store
from tinkergym.errors import TinkerGymError, from_wire


class EndSignals:
    """Counts termination signals while the block runs."""

    def __init__(self) -> None:
        self.count = 0
        """The number of signals; a second one means: end at once."""
        self._before: dict[int, object] = {}

    @property
    def came(self) -> bool:
        """Whether there was one."""
        return self.count > 0

    def __enter__(self) -> EndSignals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # As requested by nohup.
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, _number: int, _frame: object) -> None:
        self.count += 1


_LOOK_SECONDS = 0.1
_SETTLED_SECONDS = 1.0
"""Interval between looks while everything runs; an end is noticed at once."""
_MOST_FAILED_STARTS = 5

_SCHEDULER_COMMAND = quick_start.command("backend.scheduler.scheduler_host")


Role = Literal["all", "gateway", "scheduler"]


def serve(
    config: ServiceConfig,
    *,
    role: Role = "all",
    scheduler_command: Sequence[str] = _SCHEDULER_COMMAND,
    say: Callable[[Notice], None] = print,
) -> int:
    """Run the service until Ctrl-C or SIGTERM; return the exit code. Call it from the main thread.

    Args:
        config: The operator's settings.
        role: Which parts to run here. Several gateways may share a database; of several schedulers one is
            active, and the others stand by.
        scheduler_command: The command of the scheduler host.
        say: Receives messages for the operator.

    Raises:
        ConfigError: The data folder, the blob store or the port cannot be used.
        MissingExtraError: Something required by the settings is not installed.
        TinkerGymError: The database cannot be used.
    """
    schedules, answers_here = role != "gateway", role != "scheduler"
    if config.blobs:
        require_usable(config.blobs_in("jobs"))  # A gateway stores uploads there.
    if schedules:
        _require_machines(config)
    with ExitStack() as held:
        signals = held.enter_context(EndSignals())
        held.enter_context(data_folder.claimed(config, schedules=schedules))
        listener = held.enter_context(listening(config)) if answers_here else None
        url = "" if listener is None else url_of(config.host, listener)
        # A server's database may have other processes that still run.
        upgrade = schedules and database_file(config.store_url) is not None
        key_file = _introduce(config, url, upgrade=upgrade)
        shared = "" if role == "all" else f":{role}:{config.port}"
        prefix = hashlib.sha256(os.fsencode(f"{config.data_dir}{shared}")).hexdigest()[:16] + ":"
        # Left by a predecessor that was killed together with its guardian.
        processes.kill_marked(prefix)
        if schedules:
            _start_over(config, say)
        mark = held.enter_context(_marked(prefix))
        probe = GatewayProbe(lambda: answers(url))
        parts = {}
        if schedules:
            silent = SchedulerProbe(lambda: scheduler_is_silent(config))
            log = data_folder.log_file(config, "scheduler")
            parts["scheduler"] = RestartedPart("scheduler", scheduler_command, mark, log, hangs=silent.hangs)
        if listener is not None:
            port = listener.fileno()
            command = quick_start.command("backend.gateway", str(port))
            log = data_folder.log_file(config, "gateway")
            parts["gateway"] = RestartedPart("gateway", command, mark, log, (port,), hangs=probe.hangs)
        greeting = Greeting(
            url,
            key_file,
            say,
            lambda: _refusals(config),
            isolation=lambda: isolation_notice(config.python_tool),
            heard=probe.heard,
        )
        try:
            return _watch(config, parts, signals, greeting, say)
        finally:
            _stop(list(parts.values()), mark, signals)


def _require_machines(config: ServiceConfig) -> None:
    """Check that workers can run, here or in the cluster, before anything starts."""
    require_divided_heads(config)
    if config.ray.address:
        require_cluster(config)
        return
    if config.engine == "vllm":
        require_vllm()  # All workers run on this machine, with this Python.
    require_gpus(config)


def _start_over(config: ServiceConfig, say: Callable[[Notice], None]) -> None:
    """Forget what an earlier run of the scheduler left."""
    for model, fault in without_folder(config.model_paths).items():
        message = f"the model {model!r} cannot be used: {fault}"
        say(Notice("model_refused", message, {"model": model, "reason": fault}))
    _forget(config, "scheduler")


@contextmanager
def _marked(prefix: str) -> Iterator[str]:
    """Yield the mark of all processes of this run, which a guardian ends if this process is killed."""
    mark = prefix + secrets.token_hex(8)
    with guarded(mark):
        yield mark


def _watch(
    config: ServiceConfig,
    parts: Mapping[str, RestartedPart],
    signals: EndSignals,
    greeting: Greeting,
    say: Callable[[Notice], None],
) -> int:
    environment = config.environment()
    while not signals.came:
        now = time.monotonic()
        for part in parts.values():
            ended = part.ended(now)
            if ended is not None:
                message = f"the {part.name} ended ({ended}); it starts again. Its log: {part.log}"
                told = {"part": part.name, "reason": ended, "log": str(part.log)}
                say(Notice("part_ended", message, told))
                _forget(config, part.name)
            if part.due(now):
                part.start(now, environment)
        gateway = parts.get("gateway")
        if gateway is None:
            if not greeting.complete:
                greeting.complete = True
                # A server's database lets one of several schedulers work.
                shared = database_file(config.store_url) is None
                standby = ", or stands by while another scheduler does" if shared else ""
                say(Notice("scheduling", f"schedules jobs{standby}; Ctrl-C stops it"))
        elif gateway.failures >= _MOST_FAILED_STARTS and not greeting.given:
            reason = gateway.last_words() or "no output"
            message = f"tinkergym serve: the gateway does not start: {reason}"
            say(Notice("gateway_refused", message, {"reason": reason}))
            return 1
        else:
            greeting.give_when_due(now)
        running = [part.process_id for part in parts.values() if part.process_id is not None]
        settled = greeting.complete and len(running) == len(parts)
        wait_for_end(running, _SETTLED_SECONDS if settled else _LOOK_SECONDS)
    say(Notice("stopping", "stopping; unfinished jobs continue at the next start"))
    return 0


def _stop(parts: Sequence[RestartedPart], mark: str, signals: EndSignals) -> None:
    """Ask all parts to end, wait a while (unless a second signal arrives), and kill the rest."""
    before = signals.count
    deadline = time.monotonic() + SERVICE_STOP_SECONDS
    for part in parts:
        part.terminate()
    # A list, so that every part is checked: ended ones must be noticed at once.
    while (
        [part for part in parts if part.running] and time.monotonic() < deadline and signals.count == before
    ):
        time.sleep(_LOOK_SECONDS / 2)
    processes.kill_marked(mark)
    for part in parts:
        part.reap()


def _introduce(config: ServiceConfig, url: str, *, upgrade: bool) -> Path:
    """Create the local tenant and its key at the first start; write the service's address, if it has one."""
    with closing(Store.open(config.store_url, upgrade=upgrade)) as store:
        adopt_folder(config.tokens_dir, store.service())
        if url:
            key = data_folder.read_local_key(config)
            if store.keys.tenant_of(key) != LOCAL_TENANT:
                key = store.keys.create(LOCAL_TENANT, "local.json")
            data_folder.write_local_file(config, url, key)
    return config.local_file


def _forget(config: ServiceConfig, part: str) -> None:
    """Report a missing part to /v1/health at once. A broken database is reported elsewhere."""
    with suppress(TinkerGymError), closing(Store.open(config.store_url)) as store:
        service = store.service()
        if part != "scheduler":
            service.forget_part(part)
            return
        with closing(service.scheduler_lock()) as lock:
            if lock.held():  # Otherwise another machine's scheduler is active.
                service.forget_part(part)
                service.forget_refusals()
                if not config.ray.address:
                    service.silence_pools()  # They run below it.


def _refusals(config: ServiceConfig) -> dict[str, str]:
    """Return, by model, why its worker does not start."""
    try:
        with closing(Store.open(config.store_url)) as store:
            refused = store.service().refusals()
    except TinkerGymError:  # The database is broken or locked, which is reported elsewhere.
        return {}
    return {model: str(from_wire(refusal.error.model_dump())) for model, refusal in refused.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, serve, and turn refusals into one sentence and an exit code."""
    parser = argparse.ArgumentParser(prog="tinkergym serve", description="Run the service on this machine.")
    parser.add_argument("--config", type=Path, help="a TOML file with settings")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting, e.g. port=9000; wins over the file",
    )
    parser.add_argument(
        "--role",
        choices=get_args(Role),
        default="all",
        help="the parts to run here; several gateways and standby schedulers may share one database",
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines, for scripts")
    options = parser.parse_args(arguments)
    refused = 2  # The command line is invalid.
    try:
        config = load_config(options.config, options.set)
        refused = 1
        return serve(config, role=options.role, say=_say_in_json if options.json else _say)
    except TinkerGymError as error:
        print(f"tinkergym serve: {error}", file=sys.stderr)
        if options.json:
            print(json.dumps({"error": error.to_wire()}), flush=True)
        return refused


def _say(notice: Notice) -> None:
    _print(notice.message)


def _say_in_json(notice: Notice) -> None:
    _print(json.dumps(notice.to_json()))


def _print(line: str) -> None:
    # A closed terminal must neither end the service nor prevent a clean end.
    with suppress(OSError):
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
