from __future__ import annotations

import time

import pytest

from backend.store.blobs import new_checkpoint_key, tenant_folder
from backend.store.collector import LEFT_OVER_SECONDS, Collector
from backend.store.image_rows import ImageRow
from backend.store.images import HeldImages
from backend.store.store import Store
from tests.backend.store.blob_places import PLACES, fill, open_place
from tinkergym.schema.events import CheckpointView


@pytest.fixture(params=PLACES)
def blobs(request, tmp_path):
    return open_place(request.param, tmp_path, request)[0]


@pytest.fixture
def job(store, spec, blobs):
    """A job's lease and the keys of two checkpoints: the first has a row, the second none."""
    lease = store.service().acquire(store.tenant("ada").create_job(spec, {}).job_id, "w", 30, now=0)
    keys = [new_checkpoint_key(lease.job_id, "", 1, epoch=epoch) for epoch in (2, 1)]
    for key in keys:
        fill(blobs.below("jobs"), key, weights=b"123")
    view = CheckpointView(step=1, policy_version=1, key=keys[0], sha256="00", files={})
    store.service().add_checkpoint(lease, view)
    blobs.put(f"jobs/{lease.job_id}/episodes/step-000001/e1.zlib", b"episodes")
    return lease, keys


def collect(store, blobs, *, days):
    now = time.time() + days * LEFT_OVER_SECONDS
    places = {name: blobs.below(name) for name in ("uploads", "images")}
    collector = Collector(store, job_files=blobs.below("jobs"), **places, clock=lambda: now)
    return list(collector.collect())


def test_removes_after_a_day_what_no_row_names(store, blobs, job):
    lease, (named, left_over) = job
    collect(store, blobs, days=0.9)
    assert blobs.has(f"jobs/{left_over}/weights")
    collect(store, blobs, days=1.1)
    assert not blobs.has(f"jobs/{left_over}")
    assert blobs.has(f"jobs/{named}/weights")
    assert blobs.has(f"jobs/{lease.job_id}/episodes/step-000001/e1.zlib")


def test_removes_files_of_deleted_jobs_and_of_broken_uploads(store, blobs, job):
    for key in ("jobs/job-gone/episodes/step-000001/e1.zlib", "uploads/tenant/chunks/00.json"):
        blobs.put(key, b"left")
    collect(store, blobs, days=1.1)
    assert [info.key for info in blobs.files("uploads")] == []
    assert "job-gone" not in blobs.folders("jobs")


def test_leaves_everything_to_the_service_of_another_database(store, blobs, job, tmp_path, clock):
    collect(store, blobs, days=0)
    clock.now += 1.0
    other = Store.open(f"sqlite:///{tmp_path / 'other.sqlite3'}", clock=clock)
    other.keys.ensure_tenant("ada")
    assert collect(other, blobs, days=99) == []
    other.close()
    assert blobs.has(f"jobs/{job[1][0]}/weights")


def test_leaves_jobs_alone_of_which_it_knows_none(store, blobs):
    blobs.put("jobs/job-other/episodes/step-000001/e1.zlib", b"another's")
    for _ in range(2):
        assert collect(store, blobs, days=99) == []
    assert "job-other" in blobs.folders("jobs")


def test_skips_what_earlier_versions_left(store, blobs, job):
    hidden = [".deleted-job-1/episode", f"{job[0].job_id}/checkpoints/.replaced-step-1/weights"]
    for key in hidden:
        blobs.put(f"jobs/{key}", b"left")
    collect(store, blobs, days=99)
    assert all(blobs.has(f"jobs/{key}") for key in hidden)


def test_removes_images_without_row_only_where_rows_are_known(store, blobs, job):
    folders = {tenant: tenant_folder(tenant) for tenant in ("ada", "bob")}
    for folder in folders.values():
        for name in ("known", "left"):
            blobs.put(f"images/{folder}/{name}", b"an image")
    store.tenant("ada").images.add([ImageRow(sha256="known", bytes=8, used_at=0.0)])
    collect(store, blobs, days=0.9)
    assert len(blobs.files("images")) == 4
    collect(store, blobs, days=1.1)
    assert [info.key for info in blobs.files(f"images/{folders['ada']}")] == ["known"]
    assert len(blobs.files(f"images/{folders['bob']}")) == 2, "of an earlier version, which had no rows"


def test_removes_after_a_day_the_images_that_killed_gateways_held(store, blobs, job):
    HeldImages(blobs.below("images"), "only chats").hold("0" * 64, b"an image")
    collect(store, blobs, days=0.9)
    assert len(blobs.files("images")) == 1
    collect(store, blobs, days=1.1)
    assert blobs.files("images") == []


def test_decides_by_jobs_from_before_its_start(store, spec, blobs):
    blobs.put("jobs/job-other/episodes/step-000001/e1.zlib", b"another's")
    places = {name: blobs.below(name) for name in ("uploads", "images")}
    collector = Collector(store, job_files=blobs.below("jobs"), **places, clock=lambda: 0.0)
    job_id = store.tenant("ada").create_job(spec, {}).job_id
    blobs.put(f"jobs/{job_id}/episodes/step-000001/e1.zlib", b"ours")
    assert not collector.is_ours()
