"""Starts Ray on this machine, or joins a cluster. Ray reads its settings from the environment on import."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from backend.processes import children
from backend.scheduler import ray_patience
from backend.scheduler.host_log import share_log

KILL_SECONDS = 0.1
"""How long Ray's raylet waits for a process that it was told to end, before it kills it."""
_OBJECT_STORE_BYTES = 80 * 2**20
"""We do not use Ray's object store; this is about the minimum that Ray accepts."""

_AGENTS = ("dashboard_agent", "runtime_env_agent")
"""Ray's names of the Python processes that its raylet starts for itself."""

_UNUSED = {
    # Reports that nobody reads.
    "RAY_task_events_report_interval_ms": "0",
    "RAY_ray_events_report_interval_ms": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
    "RAY_debug_dump_period_milliseconds": "0",
    "RAY_io_context_monitor_probe_interval_ms": "60000",
    # For an autoscaler.
    "RAY_gcs_pull_resource_loads_period_milliseconds": "60000",
    # For Ray's object store: a full disk, garbage, transfers between machines.
    "RAY_local_fs_monitor_interval_ms": "60000",
    "RAY_raylet_check_gc_period_milliseconds": "60000",
    "RAY_object_manager_timer_freq_ms": "60000",
}
"""Intervals, in milliseconds, of what we do not use. With its own, raylet and GCS computed twice as much."""

_LOG_FILE_BYTES = 4 * 2**20
"""Log size of each Ray process, twice: the current file and the previous one."""


def join_cluster(address: str, namespace: str) -> None:
    """Become a driver of a running cluster, which `cluster_door` has checked. Its token is known to Ray.

    Args:
        address: See `RaySettings.address`.
        namespace: What separates the names of this service's actors from those of others.
    """
    import ray

    ray.init(address=address, namespace=namespace, log_to_driver=True, configure_logging=False)


def start_ray(temp_dir: Path) -> None:
    """Start Ray on this machine: on the loopback interface only, and with a token that dies with it.

    Args:
        temp_dir: Folder for Ray's sockets and logs. Short, because Ray adds 60 bytes for socket paths.
    """
    # Ray reads these when it is imported. Without the third it uses the machine's external address, and all
    # of its processes listen on every interface.
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # An actor that does not request a GPU from Ray would not see any; ours share the device themselves.
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    # Normal priority: with Ray's 15, pools hardly run on a busy machine. Environments have less.
    os.environ.setdefault("RAY_worker_niceness", "0")
    for name, value in ray_patience.SETTINGS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    # Without these a worker's output is never rotated: an environment that prints would fill the disk.
    os.environ.setdefault("RAY_ROTATION_MAX_BYTES", str(_LOG_FILE_BYTES))
    os.environ.setdefault("RAY_ROTATION_BACKUP_COUNT", "1")
    # No worker starts before Ray's own agent responds, which Ray would only poll once a second.
    os.environ.setdefault("RAY_agent_manager_retry_interval_ms", "100")
    # Four times a second, it took a third of what an idle raylet computes.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "1000")
    os.environ.setdefault("RAY_kill_worker_timeout_milliseconds", str(round(KILL_SECONDS * 1000)))
    os.environ.setdefault("RAY_raylet_report_resources_period_milliseconds", "1000")
    for name, value in _UNUSED.items():
        os.environ.setdefault(name, value)
    # A pool must not wait for an environment worker that Ray starts before it: a pool takes far longer.
    os.environ.setdefault("RAY_worker_maximum_startup_concurrency", "2")
    # Output of its workers goes to a file.
    os.environ["RAY_COLOR_PREFIX"] = "0"
    import ray
    from ray._private import node, services

    one_log = share_log()
    _leave_out_unused_parts(node.Node, "start_api_server", "start_monitor", *["start_log_monitor"] * one_log)
    _wait_for_a_slow_raylet(services)
    _tie_agents_to_ray(services)
    ray.init(
        address="local",
        namespace="tinkergym",
        include_dashboard=False,
        num_cpus=1,
        num_gpus=0,
        object_store_memory=_OBJECT_STORE_BYTES,
        log_to_driver=not one_log,
        configure_logging=False,
        _temp_dir=str(temp_dir),
    )


def _leave_out_unused_parts(node: Any, *starts: str) -> None:
    """Keep Ray from starting parts that we do not use, for which it has no setting.

    `include_dashboard=False` only makes the dashboard's server serve less: Ray still waits for it, and it and
    the autoscaler take half a second of a core each while the service starts or recovers. The log monitor
    looks at files all the time.
    """
    # Another release of Ray may name them differently; then it starts them, and everything else is unchanged.
    for name in starts:
        if hasattr(node, name):
            setattr(node, name, lambda _node, **_options: None)


def _wait_for_a_slow_raylet(services: Any) -> None:
    """Let Ray wait as long as its raylet lives, instead of 30 seconds, for which it has no setting."""
    get_node = getattr(services, "get_node", None)
    if get_node is None:  # Another release of Ray waits as long as it likes.
        return

    def patient(*arguments: Any, **options: Any) -> Any:
        return ray_patience.until_known(lambda: get_node(*arguments, **options), _raylet_runs)

    setattr(services, "get_node", patient)  # noqa: B010 - mypy knows the original's type


def _raylet_runs() -> bool:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if child.name() == "raylet" and child.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def _tie_agents_to_ray(services: Any) -> None:
    """Let the kernel end Ray's agents with its raylet, for which Ray has no setting.

    The kernel ends everything else of Ray with this process, or Ray does so at once. The agents notice by
    themselves, but then try for a minute to report it to a GCS that is gone too. Guardians end them earlier,
    unless these are killed as well.
    """
    name = "_build_python_executable_command_memory_profileable"
    # Another release of Ray may build the command elsewhere; then the agents end late, as described.
    python_for = getattr(services, name, None)
    if sys.platform != "linux" or python_for is None:
        return

    def tied(component: str, *arguments: Any, **options: Any) -> list[str]:
        command: list[str] = python_for(component, *arguments, **options)
        return [*command, "-m", children.__name__] if component in _AGENTS else command

    setattr(services, name, tied)


KEPT_FILES = 200
"""Logs of finished processes to keep, newest first: a worker leaves about six."""

_OF_PROCESS = re.compile(r"[-_](\d+)\.(?:out|err|log)(?:\.\d+)?$")
"""The names of a process's logs end with its id."""


def remove_old_logs(ray_dir: Path, alive: Callable[[int], bool] = psutil.pid_exists) -> None:
    """Remove the oldest logs of finished processes, because workers may come and go for months."""
    found: list[tuple[float, Path]] = []
    for file in ray_dir.glob("session_*/logs/**/*"):
        named = _OF_PROCESS.search(file.name)
        if named and not alive(int(named[1])):
            with suppress(OSError):
                found.append((file.stat().st_mtime, file))
    for _, file in sorted(found)[:-KEPT_FILES]:
        with suppress(OSError):
            file.unlink()


def child_environment(*, everywhere: bool = False) -> dict[str, str]:
    """Return the environment variables of every process below Ray.

    On this machine those that the operator did not set; for processes `everywhere` all.

    Two processes with two OpenMP threads each on two cores slow each other down 4-10 times if waiting threads
    spin for long. So they spin for about ten microseconds, which makes a train step 6-10 % faster than not
    spinning at all, and every process computes with one thread; a pool raises its own number for the holder
    of its device's lock. And memory freed by a train step stays in the process for the next one: getting it
    back from the system page by page costs a twentieth of the step. For the next step to find it, threads
    share few memory arenas: with one for each, a service that ran job after job used several times the memory
    of the largest, and spent a twentieth more on new pages.
    """
    wanted = {
        "OMP_NUM_THREADS": "1",
        "GOMP_SPINCOUNT": "20000",
        "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
        "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
        "MALLOC_ARENA_MAX": "4",
        "TOKENIZERS_PARALLELISM": "false",
        # Ray renames its processes by overwriting their environment, in which we find them again.
        "SPT_NOENV": "1",
    }
    return wanted if everywhere else {key: value for key, value in wanted.items() if key not in os.environ}
