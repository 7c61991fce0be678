"""Where the operator wishes a model to run: what is left out, and what is refused."""

from __future__ import annotations

import pytest

from backend.admission.model_wishes import wish_of
from backend.config import ServiceConfig, load_config
from backend.errors import ConfigError
from backend.planning.pool_place import PoolPlace, ProcessPlace

GENERAL = ["placement.learner.ranks=2", "placement.labels.zone=a"]


def test_fills_placement_of_one_model_from_that_of_all():
    config = load_config(None, [*GENERAL, "models.nano.placement.learner.divided=true"])
    placement = config.placement_of("nano")
    assert (placement.learner.ranks, placement.learner.divided, placement.labels) == (2, True, {"zone": "a"})
    assert config.placement_of("nano-vl") == config.placement_of("some/hub-id") == config.placement


def test_keeps_placements_in_the_processes_of_the_service():
    config = load_config(None, [*GENERAL, "models.q.path=/q", "models.q.placement.gpus=4"])
    found = ServiceConfig.from_environment(config.environment())
    assert found.placement_of("q") == config.placement_of("q")
    assert found.model_paths["q"] == "/q"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (["device=cpu"], "device"),
        (["learner_ranks=2"], "learner_ranks"),
        (["learner_divide_from=1"], "learner_divide_from"),
        (["models.q=3"], "models.q"),
        (["models.q.placement.gpus=1"], "models.q.path"),
        (["models.nano.placement.gpu=1"], "models.nano.placement.gpu"),
        (["models.nano.placement.tensor_parallel=2"], "placement.tensor_parallel"),
        (["models.nano.placement.tensor_parallel=0"], "models.nano.placement.tensor_parallel"),
        (["placement.learner.divided=often"], "placement.learner.divided"),
        (["placement.gpus=2", "placement.learner.ranks=4"], "placement.learner.ranks"),
        (["placement.gpus=2", "placement.engines=2", "placement.tensor_parallel=2"], "placement.engines"),
        (["placement.gpus=1", "placement.together=false"], "placement.gpus"),
        (['models.nano.teachers=["large"]'], "models.nano.teachers"),
        (["engine=vllm", "vllm.full_weights=device", "placement.tensor_parallel=2"], "vllm.full_weights"),
        (["placement.gpus=2", "models.nano.placement.learner.ranks=4"], "models.nano.placement"),
    ],
)
def test_rejects_impossible_wish_and_names_setting(settings, field):
    with pytest.raises(ConfigError, check=lambda error: error.field == field):
        load_config(None, settings)


def test_lets_only_vllm_divide_a_model_over_gpus():
    settings = ["engine=vllm", "models.nano.placement.tensor_parallel=2"]
    assert load_config(None, settings).placement_of("nano").tensor_parallel == 2
    planned = [
        wish_of(load_config(None, [f"engine={engine}"]), "nano").placement.tensor_parallel
        for engine in ("vllm", "transformers")
    ]
    assert planned == [None, 1]


@pytest.mark.parametrize(
    ("rank", "engine", "devices"),
    [
        (["0"], ["0"], ("cuda",)),
        (["0"], ["1"], ("cuda:1",)),
        (["0"], ["0", "1"], ("cuda:0", "cuda:1")),
        (["1"], ["0", "1"], ("cuda:1", "cuda:0")),
        (["4"], ["2", "3"], ("cuda:1", "cuda:2")),
    ],
)
def test_names_gpus_of_an_engine_as_its_process_does(rank, engine, devices):
    place = PoolPlace(
        ranks=(ProcessPlace(bundle=0, gpus=tuple(rank)),),
        engines=(ProcessPlace(bundle=0, gpus=tuple(engine)),),
    )
    assert place.engine_devices == devices


def test_wishes_room_for_teachers_and_for_full_weights_on_device():
    cluster = ["ray.address=10.0.0.5:6379", "engine=vllm", "vllm.full_weights=device"]
    plain, taught = (
        wish_of(load_config(None, [*cluster, *more]), "nano")
        for more in ([], ['models.nano.teachers=["nano-instruct"]'])
    )
    assert plain.teacher_bytes == 0
    assert taught.teacher_bytes > 10**9
    assert taught.memory_bytes > plain.memory_bytes
    assert (plain.keeps_full_weights, plain.placement.tensor_parallel) == (True, 1)
