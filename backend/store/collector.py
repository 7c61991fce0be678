"""Removes the blobs that no row names: what killed writers, lost leases and deleted jobs left.

Only what is older than a day, because a blob is written before its row. Several services on one store may
collect at once: each deletes what is left over, and deleting twice is no error.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath

from backend.store.adapter_parts import drop_old_parts
from backend.store.blobs import BlobMissingError, Blobs, tenant_folder
from backend.store.images import HELD
from backend.store.store import Store
from backend.store.uploads import drop_loose_chunks
from tinkergym.errors import TinkerGymError

_log = logging.getLogger(__name__)

LEFT_OVER_SECONDS = 86_400.0
"""What is younger may belong to something that is not recorded yet, such as an adapter that is being sent."""
OWNER = "owner.json"
"""Names the database to which the blobs of jobs belong."""
_PASS_SECONDS = 6 * 3600.0
_FOLDER_SECONDS = 0.2
"""Between two jobs of a pass."""
_END_SECONDS = 5.0


class Collector:
    """One pass over all blobs of a service."""

    def __init__(
        self,
        store: Store,
        *,
        job_files: Blobs,
        uploads: Blobs,
        images: Blobs,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._jobs, self._uploads, self._clock = store, job_files, uploads, clock
        self._images = images
        self._began = clock()

    def collect(self) -> Iterator[str]:
        """Remove what is left over, job by job; yield the name of each folder after it."""
        if not self.is_ours():
            _log.error(
                "%s may belong to the service of another database, so nothing there is collected; if "
                "all of it is this service's, write %s there: %s",
                self._jobs.where(""),
                OWNER,
                json.dumps(self._ours()),
            )
            return
        before = self._clock() - LEFT_OVER_SECONDS
        for job_id in _listed(self._jobs):
            self._collect_job(job_id, before)
            yield job_id
        for tenant in _listed(self._uploads):
            drop_loose_chunks(self._uploads.below(tenant), before=before)
            drop_old_parts(self._uploads.below(tenant), before=before)
            yield tenant
        for tenant_id in self._store.tenants_with_images():
            self._collect_images(tenant_id, before)
            yield tenant_id
        held = self._images.below(HELD)
        for blob in held.files():
            if blob.written_at < before:
                held.delete(blob.key)
        yield HELD
        for blobs in (self._jobs, self._uploads, self._images):
            blobs.remove_drafts(before=before)

    def _collect_job(self, job_id: str, before: float) -> None:
        # Listed before the rows are read: what gets a row in between is not in the list, or is there.
        files = self._jobs.files(job_id)
        named = self._store.checkpoint_keys(job_id)
        if named is None:
            if all(blob.written_at < before for blob in files):
                self._jobs.delete(job_id)
            return
        newest: dict[str, float] = defaultdict(float)
        for blob in files:
            folder = str(PurePosixPath(job_id, blob.key).parent)
            if blob.key.startswith("checkpoints/"):
                newest[folder] = max(newest[folder], blob.written_at)
        for folder, written_at in newest.items():
            hidden = PurePosixPath(folder).name.startswith(".")
            if folder not in named and not hidden and written_at < before:
                self._jobs.delete(folder)

    def _collect_images(self, tenant_id: str, before: float) -> None:
        # A tenant without rows may have images of earlier versions, which had files only. Listed before the
        # rows are read, as files of jobs.
        blobs = self._images.below(tenant_folder(tenant_id))
        files = blobs.files()
        named = {row.sha256 for row in self._store.tenant(tenant_id).images.all()}
        for blob in files if named else ():
            if blob.key not in named and blob.written_at < before:
                blobs.delete(blob.key)

    def is_ours(self) -> bool:
        """Return whether this database's service wrote the blobs: another's rows name none of them.

        Decided once, and written down. If this database knew none of the jobs when the collector was made,
        they are another service's; later it knows new ones of its own.
        """
        ours = self._ours()
        try:
            found = json.loads(self._jobs.get(OWNER))
        except BlobMissingError:
            job_ids = _listed(self._jobs)
            unknown = job_ids and not any(self._store.has_job(one, before=self._began) for one in job_ids)
            found = {"database": None} if unknown else ours
            self._jobs.put(OWNER, json.dumps(found).encode())
        return bool(found == ours)

    def _ours(self) -> dict[str, str]:
        return {"database": self._store.identity()}


def _listed(blobs: Blobs) -> list[str]:
    """Return the folders of jobs or tenants; those with a dot are drafts of earlier versions."""
    return [name for name in blobs.folders() if not name.startswith(".")]


class CollectorThread:
    """Runs a pass every few hours, with pauses between the jobs, until the process ends."""

    def __init__(self, collector: Collector) -> None:
        """Start."""
        self._collector, self._end = collector, threading.Event()
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it after the current job."""
        self._end.set()
        self._thread.join(_END_SECONDS)  # A daemon, which may wait for a store that hangs.

    def _run(self) -> None:
        # Services that start together do not collect together.
        pause = random.uniform(0.1, 0.2) * _PASS_SECONDS
        # At once, as whose the blobs are is told by the jobs from before the start; the store may hang.
        with suppress(TinkerGymError, OSError):
            self._collector.is_ours()
        while not self._end.wait(pause):
            pause = _PASS_SECONDS
            try:
                for _ in self._collector.collect():
                    if self._end.wait(_FOLDER_SECONDS):
                        return
            except (TinkerGymError, OSError):
                _log.exception("left-over blobs could not be removed; the next pass tries again")
