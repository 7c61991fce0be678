from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.backend.store.blob_places import HAS_S3

MIB, MOST_MIB = 256, 64


@pytest.mark.skipif(not HAS_S3, reason="needs s3fs and moto: make test-all PARTS=s3")
def test_moves_large_folder_with_little_memory(bucket, tmp_path):
    script = Path(__file__).with_name("upload_memory.py")
    done = subprocess.run(
        [sys.executable, script, bucket, tmp_path, str(MIB)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    uploaded, downloaded = map(int, done.stdout.split())
    assert (uploaded < MOST_MIB, downloaded < MOST_MIB) == (True, True), done.stdout
