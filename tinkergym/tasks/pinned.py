"""The hash of the data that an environment draws tasks from: for certificates, compared by workers."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import gymnasium as gym

from tinkergym.errors import InvalidEnvironmentError
from tinkergym.tasks.data_read_once import shared
from tinkergym.tasks.grid import sources_of
from tinkergym.tasks.in_memory import InMemoryTasks
from tinkergym.tasks.source import TaskSource

_HASH_SECONDS = 10.0
"""How long to read an environment's tasks at most."""


def named_hash(name: str, env: gym.Env[Any, Any], *, seconds: float = _HASH_SECONDS) -> dict[str, str]:
    """Return `data_sha256` under the environment's name; nothing if it has no tasks."""
    sha256 = data_sha256(env, seconds=seconds)
    return {} if sha256 is None else {name: sha256}


def refuse_other_data(env: gym.Env[Any, Any], recorded: str, name: str, *, remember: bool = True) -> None:
    """Refuse an environment whose tasks are not those with the recorded hash; empty if there is none.

    Args:
        env: The environment.
        recorded: The hash.
        name: The environment's name in the job.
        remember: Whether environments of this name have equal tasks in this process, if code makes them.

    Raises:
        InvalidEnvironmentError: They are others. The code is `data_changed`.
    """
    if not recorded:
        return
    if remember and all(isinstance(source, InMemoryTasks) for source in sources_of(env)):
        # Tasks that code makes cost as much each time, and do not change while the process lives.
        found = shared(("hash of tasks", name, recorded), lambda: data_sha256(env))
    else:
        found = data_sha256(env)
    if found and found != recorded:
        raise InvalidEnvironmentError(
            f"the tasks of {name:.300} are not those that the job was started with: their hash is "
            f"{found[:12]}, the job recorded {recorded[:12]}",
            hint="put the data back, or start a new job",
            field="environment",
            code="data_changed",
        )


def data_sha256(env: gym.Env[Any, Any], *, seconds: float = _HASH_SECONDS) -> str | None:
    """Return the SHA-256 of an environment's tasks; of several sources together.

    Args:
        env: The environment, wrapped or not.
        seconds: How long to read them at most.

    Returns:
        None if it has no tasks; empty if they could not be hashed, or not in time.
    """
    sources = sources_of(env)
    if not sources:
        return None
    found: list[str] = []
    # A daemon: data that takes longer must not keep the process from ending.
    thread = threading.Thread(target=lambda: found.append(_hashed(sources)), daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else ""


def _hashed(sources: list[TaskSource]) -> str:
    try:
        each = sorted(source.fingerprint for source in sources)
    # A source may be foreign code, and a job needs no certificate to run.
    except Exception:
        return ""
    return each[0] if len(each) == 1 else hashlib.sha256("\n".join(each).encode()).hexdigest()
