"""The hash of the data that an environment draws its tasks from, for the certificate of a run."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import gymnasium as gym

from tinkergym.tasks.grid import sources_of
from tinkergym.tasks.source import TaskSource


def named_hash(name: str, env: gym.Env[Any, Any], *, seconds: float = 10.0) -> dict[str, str]:
    """Return `data_sha256` under the environment's name; nothing if it has no tasks."""
    sha256 = data_sha256(env, seconds=seconds)
    return {} if sha256 is None else {name: sha256}


def data_sha256(env: gym.Env[Any, Any], *, seconds: float) -> str | None:
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
