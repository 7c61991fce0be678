"""Prints by how many MiB the memory grows with a folder of this size: going up, and coming down again."""

import hashlib
import json
import os
import resource
import sys
from pathlib import Path

from backend.store.folder_cache import FolderCache
from backend.store.object_blobs import ObjectBlobs

url, where, size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
up, down = (ObjectBlobs(url, FolderCache(where / name, most_bytes=2**40)) for name in ("up", "down"))
up.put("warm", bytes(2**20))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
digest = hashlib.sha256()
with up.filling("step-1.e1") as folder:
    folder.mkdir()
    with (folder / "weights").open("wb") as file:
        for _ in range(size):
            block = os.urandom(2**20)
            digest.update(block)
            file.write(block)
    listed = {"weights": {"bytes": size * 2**20, "sha256": digest.hexdigest()}}
    (folder / "manifest.json").write_text(json.dumps({"files": listed}))
uploaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
down.local("step-1.e1")
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((uploaded - before) // 1024, (after - before) // 1024)
