"""Downloads a checkpoint and verifies it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tinkergym.basics.written_files import writing_to
from tinkergym.errors import (
    CheckpointCorruptError,
    NotFoundError,
)
from tinkergym.remote.api import Api
from tinkergym.remote.policy_export import of_one_policy
from tinkergym.schema.events import CheckpointView


def checkpoint_at(stored: list[CheckpointView], job_id: str, step: int | None) -> CheckpointView:
    """Return the checkpoint of a step, or the newest.

    Args:
        stored: The checkpoints of a job's policies, oldest first.
        job_id: The job.
        step: The step; None is the newest.

    Raises:
        NotFoundError: There is none.
        InvalidRequestError: They are of several policies.
    """
    found = of_one_policy(stored, job_id)
    chosen = [c for c in found if step is None or c.step == step]
    if not chosen:
        there = ", ".join(str(c.step) for c in found) or "none"
        raise NotFoundError(
            f"{job_id} has no checkpoint" + ("" if step is None else f" of step {step}"),
            hint=f"there: {there}; older ones are removed, see keep_checkpoints",
            field="step",
        )
    return chosen[-1]


def download_checkpoint(api: Api, job_id: str, checkpoint: CheckpointView, path: Path) -> Path:
    """Download a checkpoint, verify every file, and return their folder; see `Job.download`."""
    folder = path / _file_name(job_id)
    folder = (folder / _file_name(checkpoint.agent) if checkpoint.agent else folder) / (
        f"step-{checkpoint.step:06d}"
    )
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    # The manifest has the hashes of the other files.
    names = sorted(checkpoint.files, key=lambda name: name != "manifest.json")
    expected: dict[str, str] = {}
    for name in names:
        target = folder / _file_name(name)
        digest = api.download(job_id, checkpoint.step, name, target, agent=checkpoint.agent)
        if name == "manifest.json":
            expected = _manifest_hashes(target)
        elif expected.get(name, digest) != digest:
            target.unlink()
            raise CheckpointCorruptError(
                f"{name} of checkpoint {checkpoint.step} is damaged: its SHA-256 is {digest}, "
                f"not {expected[name]}",
                hint="download it again; if that fails too, the file on the service's disk is broken",
            )
    return folder


def _manifest_hashes(manifest: Path) -> dict[str, str]:
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        return {str(name): str(entry["sha256"]) for name, entry in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorruptError(
            f"the checkpoint's manifest cannot be read: {error}", hint="download another checkpoint"
        ) from error


def _file_name(name: str) -> str:
    """Never use a path from the service: its names stay inside the requested folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "_"
