"""What a worker loads beside its own model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from backend.config import ServiceConfig
from backend.planning.pool_place import PoolPlace, ProcessPlace
from backend.workers.device_choice import PRETENDED
from backend.workers.model_loader import ModelLoader
from tinkergym.errors import InvalidRequestError


def test_loads_no_second_model_on_gpus_planned_for_one(tmp_path, monkeypatch):
    monkeypatch.setenv(PRETENDED, "1")
    place = PoolPlace(ranks=(ProcessPlace(bundle=0, gpus=("0",)),))
    store = SimpleNamespace(image_owners=dict)
    loader = ModelLoader(ServiceConfig(data_dir=tmp_path), store, "nano", place=place)
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "several_models"):
        loader.load_guest("nano-instruct")
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "several_models"):
        loader.open_model("nano-instruct")


def test_opens_one_teacher_for_several_jobs(tmp_path):
    store = SimpleNamespace(image_owners=dict)
    loader = ModelLoader(ServiceConfig(data_dir=tmp_path), store, "nano")
    opened = loader.open_model("nano-instruct")
    assert loader.open_model("nano-instruct") is opened
