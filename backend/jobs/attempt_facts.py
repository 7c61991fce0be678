"""Where an attempt of a job runs, and with which versions, for the run's certificate."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata

from pydantic import JsonValue

from backend.store.job_rows import JobLease
from backend.store.stored_facts import Fact
from tinkergym.schema.certificate import AttemptFacts

_PACKAGES = ("tinkergym", "torch", "transformers", "peft", "numpy", "tokenizers", "vllm")


def attempt_fact(lease: JobLease, place: Mapping[str, JsonValue], model_fingerprint: str = "") -> Fact:
    """Return the fact that a worker started an attempt at a job.

    Args:
        lease: The lease of the attempt.
        place: See `AttemptFacts.place`.
        model_fingerprint: See `AttemptFacts.model_fingerprint`.
    """
    seen = AttemptFacts(
        attempt=lease.attempt,
        worker_id=lease.worker_id,
        versions=_versions(),
        place=dict(place),
        model_fingerprint=model_fingerprint,
    )
    return Fact(kind="attempt", number=lease.attempt, attempt=lease.attempt, body=seen)


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # vLLM may not be installed.
    return found
