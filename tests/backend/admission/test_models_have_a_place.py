"""Models without a place on the service's nodes are refused when a job is submitted."""

from __future__ import annotations

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


def submitted(tmp_path, known, **settings):
    given = replace(facts(ServiceConfig(data_dir=tmp_path)), refusals=lambda: known)
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
