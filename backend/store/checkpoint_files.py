"""Where checkpoints are among the files of jobs.

By key, not by the path in their record: that is where they were written, and the data folder may have moved.
"""

from __future__ import annotations

from pathlib import Path

from backend.store.blobs import Blobs


def checkpoints_of(files: Blobs, agent: str) -> Blobs:
    """Return the checkpoints of a job's policy, a folder each, among the files of the job."""
    return files.below(f"checkpoints/{agent}")


def folder_of(step: int) -> str:
    """Return the key of a step's checkpoint."""
    return f"step-{step:06d}"


def checkpoint_path(job_files: Blobs, job_id: str, agent: str, step: int) -> Path:
    """Return the local path of a checkpoint, among the files of all jobs."""
    return checkpoints_of(job_files.below(job_id), agent).local(folder_of(step))
