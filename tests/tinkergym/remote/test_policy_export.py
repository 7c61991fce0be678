import hashlib
import json
from pathlib import Path

import pytest

import tinkergym as tg
from tinkergym.errors import (
    CheckpointCorruptError,
    InvalidRequestError,
    NotFoundError,
)

SMALL = tg.GRPO(group_size=2, groups_per_step=2)


class Echo(tg.TextEnv):
    """Pays for the answer "ok", twice."""

    def start(self, options):
        self.turns = 0
        return f"Say ok {self.np_random.integers(10)}."

    def reply(self, action):
        self.turns += 1
        return "Again.", float(action == "ok"), self.turns == 2


WEIGHTS_FILE = "adapter_model.safetensors"


class TestDownload:
    WEIGHTS = b"weights" * 1000

    @pytest.fixture
    def job(self, service, client):
        digest = hashlib.sha256(self.WEIGHTS).hexdigest()
        manifest = {"files": {WEIGHTS_FILE: {"bytes": len(self.WEIGHTS), "sha256": digest}}}
        service.jobs.files = {WEIGHTS_FILE: self.WEIGHTS, "manifest.json": json.dumps(manifest).encode()}
        job = client.train(Echo, steps=1, algorithm=SMALL)
        job.wait()
        return job

    def test_delivers_files_whole(self, job, tmp_path):
        folder = job.download(path=tmp_path)
        assert (folder / WEIGHTS_FILE).read_bytes() == self.WEIGHTS
        assert folder == tmp_path / job.id / "step-000001"

    def test_rejects_and_drops_damaged_file(self, job, tmp_path):
        (Path(job.checkpoints()[0].path) / WEIGHTS_FILE).write_bytes(self.WEIGHTS[:-1] + b"?")
        with pytest.raises(CheckpointCorruptError):
            job.download(1, tmp_path)
        assert not list(tmp_path.rglob("*adapter*"))

    @pytest.mark.parametrize("way", ["download", "export"])
    def test_names_place_that_cannot_be_written(self, job, tmp_path, way):
        (tmp_path / "file").write_text("")
        with pytest.raises(InvalidRequestError) as caught:
            getattr(job, way)(path=tmp_path / "file" / "inside")
        assert caught.value.field == "path"

    def test_names_file_that_cannot_take_its_place(self, job, tmp_path):
        (tmp_path / job.id / "step-000001" / "manifest.json" / "full").mkdir(parents=True)
        with pytest.raises(InvalidRequestError) as caught:
            job.download(path=tmp_path)
        assert caught.value.field == "path"

    def test_rejects_export_of_untrained_version_with_exportable_ones(self, job, tmp_path):
        with pytest.raises(NotFoundError) as caught:
            job.export(tmp_path / "best", version=0)
        assert caught.value.field == "version"
        assert not list(tmp_path.iterdir())

    def test_names_existing_checkpoints_for_a_missing_one(self, job, tmp_path):
        with pytest.raises(NotFoundError) as caught:
            job.download(7, tmp_path)
        assert caught.value.field == "step"
