from __future__ import annotations

from pathlib import Path

import pytest

from backend.store.blobs import LocalBlobs
from backend.store.job_folders import JobFolders
from tinkergym.errors import ConflictError, StorageFullError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for job_id in ("job-1", "job-2"):
        (tmp_path / "jobs" / job_id / "checkpoints").mkdir(parents=True)
        (tmp_path / "jobs" / job_id / "checkpoints" / "weights").write_bytes(bytes(100))
    return tmp_path / "jobs"


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def delete(store, folders: JobFolders, job_id: str) -> None:
    with folders.deleting(job_id) as put_away:
        store.tenant("ada").delete_job(job_id, put_away)


@pytest.fixture
def job_id(store, spec, root: Path) -> str:
    made: str = store.tenant("ada").create_job(spec, {}).job_id
    store.tenant("ada").request_cancel(made)
    (root / "job-1").rename(root / made)
    return made


def test_deletes_job_with_its_folder_or_without_one(store, spec, root, job_id):
    folders = JobFolders(LocalBlobs(root))
    assert (folders.size(job_id), folders.size("job-never")) == (100, 0)
    delete(store, folders, job_id)
    assert names(root) == ["job-2"]
    bare = store.tenant("ada").create_job(spec, {}).job_id
    store.tenant("ada").request_cancel(bare)
    delete(store, folders, bare)
    assert not store.has_job(job_id)
    assert not store.has_job(bare)


def test_touches_no_file_on_a_refused_deletion(store, spec, root):
    queued = store.tenant("ada").create_job(spec, {}).job_id
    (root / "job-1").rename(root / queued)
    with pytest.raises(ConflictError, check=lambda error: error.code == "not_ended"):
        delete(store, JobFolders(LocalBlobs(root)), queued)
    assert names(root) == sorted([queued, "job-2"])


def test_restores_folder_when_deletion_cannot_be_written(store, root, job_id):
    with pytest.raises(StorageFullError), JobFolders(LocalBlobs(root)).deleting(job_id) as put_away:
        put_away()
        assert names(root) == sorted([f".deleted-{job_id}", "job-2"])
        raise StorageFullError("at the commit")
    assert names(root) == sorted([job_id, "job-2"])
    assert store.has_job(job_id)


def test_makes_folder_follow_rows_after_kill_in_the_middle(store, root, job_id):
    (root / job_id).rename(root / f".deleted-{job_id}")
    (root / "job-2").rename(root / ".deleted-job-2")
    JobFolders(LocalBlobs(root)).finish(store.has_job)
    assert names(root) == [job_id]
    JobFolders(LocalBlobs(root / "nothing")).finish(store.has_job)
