"""Models without a place on the service's nodes are refused when a job is submitted."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import pytest

from backend.admission.bounds import models_have_a_place
from backend.config import ServiceConfig
from backend.planning.wishes import for_all_parameters
from tests.backend.admission.packs import admit, facts
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.events import ErrorView
from tinkergym.schema.jobs.parts import EnvironmentRef, FullParameters
from tinkergym.schema.jobs.rl import RLSpec

NO_PLACE = ErrorView(type="InvalidRequestError", message="needs 4 GPUs, no node has one", code="no_place")


def submitted(tmp_path, known, gpus=dict, **settings):
    given = replace(facts(ServiceConfig(data_dir=tmp_path), gpus=gpus), refusals=lambda: known)
    return admit(
        models_have_a_place, RLSpec(environment=EnvironmentRef(id="x/Y-v0"), steps=1, **settings), given
    )


def test_refuses_model_without_a_place(tmp_path):
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "no_place"):
        submitted(tmp_path, {"nano": NO_PLACE})
    assert submitted(tmp_path, {"nano": NO_PLACE.model_copy(update={"code": ""}), "other": NO_PLACE})


def test_refuses_only_training_of_all_parameters_without_a_place(tmp_path):
    known = {for_all_parameters("nano"): NO_PLACE}
    assert submitted(tmp_path, known)
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "adapter"):
        submitted(tmp_path, known, adapter=FullParameters())


def test_refuses_all_parameters_of_a_folder_where_only_adapters_fit(tmp_path):
    gpus = {"0": 24 * 10**9}
    folder = tmp_path / "one-billion"
    folder.mkdir()
    sizes = {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 32_000}
    (folder / "config.json").write_text(
        json.dumps({**sizes, "num_key_value_heads": 2, "max_position_embeddings": 4096})
    )
    header = {"w": {"dtype": "F32", "shape": [1_200_000_000], "data_offsets": [0, 4_800_000_000]}}
    head = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + 4_800_000_000)  # a hole, which takes no disk
    assert submitted(tmp_path, {}, lambda: gpus, model=str(folder))
    assert submitted(tmp_path, {}, model=str(folder), adapter=FullParameters())
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "adapter") as caught:
        submitted(tmp_path, {}, lambda: gpus, model=str(folder), adapter=FullParameters())
    assert caught.value.code == "no_place"
