"""What the learner cannot do for a job is refused when it is submitted."""

import sys

import pytest

from backend.admission.bounds import learner_can_train, quantized_bases_train_adapters
from backend.config import ServiceConfig
from backend.planning.wishes import LearnerPlacement, ModelPlacement
from backend.settings.served_models import PACKAGED_MODELS
from tests.backend.admission.packs import admit, facts
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import EnvironmentRef, FullParameters, LoRA
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.optimizer import AdamW


def spec(**settings):
    return RLSpec(environment=EnvironmentRef(id="x/Y-v0"), steps=1, **settings)


@pytest.fixture
def config(tmp_path):
    return ServiceConfig(data_dir=tmp_path)


def check(config, **settings):
    admit(learner_can_train, spec(**settings), facts(config))


def ranked(config):
    two = ModelPlacement(learner=LearnerPlacement(ranks=2))
    return config.model_copy(update={"placement": two})


def test_accepts_layers_that_a_model_has(config):
    check(config, adapter=LoRA(target_modules=["q_proj", "*_proj", "layers.0.*"]))


def test_rejects_name_that_no_layer_has_and_lists_the_others(config):
    with pytest.raises(InvalidRequestError) as caught:
        check(config, adapter=LoRA(target_modules=["query"]))
    assert caught.value.field == "adapter.target_modules"


def test_requires_package_and_one_rank_for_eight_bit_moments(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(InvalidRequestError) as caught:
        check(config, optimizer=AdamW(state_bits=8))
    assert caught.value.field == "optimizer.state_bits"
    monkeypatch.setitem(sys.modules, "bitsandbytes", pytest)  # any module will do
    check(config, optimizer=AdamW(state_bits=8))
    with pytest.raises(InvalidRequestError):
        check(ranked(config), optimizer=AdamW(state_bits=8))


def with_small(folder, model="nano", **settings):
    small = {"path": PACKAGED_MODELS[model], "quantized": "nf4"}
    return ServiceConfig(data_dir=folder, models={"small": small}, **settings)


def test_trains_only_adapters_on_quantized_base(tmp_path):
    config = with_small(tmp_path)
    for adapter, codes in (
        (FullParameters(), {"quantized_base"}),
        (LoRA(), {"", "no_bitsandbytes"}),  # By whether this machine has it.
    ):
        found = quantized_bases_train_adapters(spec(model="small", adapter=adapter), facts(config))
        assert getattr(found, "code", "") in codes
    other = spec(adapter=FullParameters())
    assert quantized_bases_train_adapters(other, facts(config)) is other
    assert config.placement_of("small").learner.ranks == 1


@pytest.mark.parametrize("settings", [{"engine": "vllm"}, {"placement": {"learner": {"ranks": 2}}}])
def test_rejects_quantized_base_where_it_cannot_run(tmp_path, settings):
    with pytest.raises(ValueError, match="cannot be run"):
        with_small(tmp_path, **settings)
