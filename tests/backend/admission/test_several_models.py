"""Jobs whose seats rest on several base models: refused where they could never be served together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from backend.admission.bounds import models_are_offered
from backend.config import ServiceConfig
from tests.backend.admission.packs import admit, facts
from tinkergym.errors import InvalidRequestError, UnknownModelError
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train

TENANT = SimpleNamespace(is_local_owner=False)
MUCH, LITTLE = 64 * 10**9, 3 * 10**9


def job(model="nano-instruct"):
    agents = {"x": Train(), "o": Train(model=model)}
    return RLSpec(environment={"id": "board/TicTacToe-v0"}, steps=1, agents=agents)


def refused(tmp_path, spec, memory=MUCH, gpus=dict, **settings):
    config = ServiceConfig(data_dir=tmp_path, **settings)
    with pytest.raises(InvalidRequestError) as caught:
        admit(models_are_offered, spec, facts(config, tenant=TENANT, memory=lambda: memory, gpus=gpus))
    assert caught.value.field == "agents.o.model"
    return caught.value


def test_refuses_models_that_never_fit_together(tmp_path):
    admit(
        models_are_offered, job(), facts(ServiceConfig(data_dir=tmp_path), tenant=TENANT, memory=lambda: MUCH)
    )
    error = refused(tmp_path, job(), LITTLE)
    assert error.code == "models_too_large"


def test_rejects_model_that_is_not_offered(tmp_path):
    assert isinstance(refused(tmp_path, job("other")), UnknownModelError)


@pytest.mark.parametrize("settings", [{"engine": "vllm"}, {"placement": {"learner": {"ranks": 2}}}])
def test_rejects_a_second_model_where_a_worker_serves_one_only(tmp_path, settings):
    refused(tmp_path, job(), **settings)


CLUSTER = {"address": "10.0.0.5:6379"}


@pytest.mark.parametrize(
    ("gpus", "settings"), [({"0": 24 * 10**9}, {}), ({}, {"ray": CLUSTER, "placement": {"gpus": 1}})]
)
def test_rejects_second_model_where_gpus_are_planned_for_one(tmp_path, gpus, settings):
    error = refused(tmp_path, job(), gpus=lambda: gpus, **settings)
    assert error.code == "several_models"


@pytest.mark.parametrize("placement", [{}, {"gpus": 0}])
def test_needs_memory_of_all_models_on_node_of_cluster(tmp_path, placement):
    on_cpus = {"ray": CLUSTER, "placement": placement}
    assert refused(tmp_path, job(), **on_cpus).code == "models_too_large"
    enough = {**on_cpus, "placement": {**placement, "memory_bytes": MUCH}}
    admit(models_are_offered, job(), facts(ServiceConfig(data_dir=tmp_path, **enough), tenant=TENANT))


def test_needs_nothing_of_this_for_one_model(tmp_path):
    config = ServiceConfig(data_dir=tmp_path, engine="vllm")
    agents = {"x": Train(model="nano"), "o": SharedWith("x")}
    spec = RLSpec(environment={"id": "board/TicTacToe-v0"}, steps=1, agents=agents)
    admit(models_are_offered, spec, facts(config, tenant=TENANT, memory=lambda: 0))
