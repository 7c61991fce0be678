import json

import pytest
import torch
from transformers import AutoModelForCausalLM

import tinkergym as tg
from backend.testing.scripted_service import ScriptedService
from tests.tinkergym.exports import NANO, Trained
from tinkergym.errors import ConflictError, InvalidRequestError
from tinkergym.schema.jobs.parts import FullParameters


@pytest.fixture
def service():
    with ScriptedService(environments=["board/TicTacToeVs-v0"]) as service:
        yield service


@pytest.fixture
def trained(service, learned, connect):
    return Trained(service, learned(), connect)


def test_a_base_for_what_is_not_merged_is_refused(service, learned, tmp_path, connect):
    trained = Trained(service, learned(FullParameters()), connect)
    for merge, said in ((True, "trained all parameters"), (False, "without merge")):
        with pytest.raises(InvalidRequestError, match=said) as caught:
            trained.job.export(tmp_path / "out", merge=merge, base="/nope")
        assert caught.value.field == "base"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rejects_base_of_another_model_and_leaves_nothing(service, learned, dtype, tmp_path, connect):
    trained = Trained(service, learned(dtype=dtype), connect)
    other = AutoModelForCausalLM.from_pretrained(NANO)
    next(other.parameters()).data.add_(0.1)
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ConflictError, match="fingerprints differ"):
        trained.job.export(tmp_path / "out", merge=True, base=str(tmp_path / "other"))
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize("damage", ["flip", "drop"])
def test_a_damaged_download_is_refused_and_leaves_nothing(trained, tmp_path, damage):
    name = "adapter_model.safetensors"
    if damage == "flip":
        weights = trained.folder / name
        weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    else:
        trained.service.break_next(f"files/{name}")
    with pytest.raises(tg.TinkerGymError, match="damaged" if damage == "flip" else "service"):
        trained.job.export(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_that_names_a_file_elsewhere_is_refused(trained, tmp_path):
    kept = trained.folder / "manifest.json"
    manifest = json.loads(kept.read_bytes())
    manifest["files"]["../evil"] = {"bytes": 1, "sha256": ""}
    kept.write_text(json.dumps(manifest))
    with pytest.raises(tg.TinkerGymError, match="outside"):
        trained.job.export(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
