import json
import shutil
import struct

import pytest

from backend.admission.bounds import engine_can_sample
from backend.config import ServiceConfig
from backend.settings.served_models import PACKAGED_MODELS, VllmSettings
from tests.backend.admission.packs import admit, facts
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.dataset import SFTSpec
from tinkergym.schema.jobs.parts import EnvironmentRef, FullParameters, LoRA, Sampling
from tinkergym.schema.jobs.rl import RLSpec

VLLM = ServiceConfig(engine="vllm", vllm=VllmSettings(max_adapter_rank=16))
PLAYED = RLSpec(environment=EnvironmentRef(id="x"), steps=1)
WRITTEN = SFTSpec(data="0" * 64, steps=1)


@pytest.mark.parametrize(
    ("spec", "change", "field"),
    [
        (PLAYED, {"sampling": Sampling(temperature=0.005)}, "sampling.temperature"),
        (PLAYED, {"adapter": LoRA(rank=32)}, "adapter.rank"),
        (WRITTEN, {"adapter": LoRA(rank=32)}, "adapter.rank"),
    ],
)
def test_rejects_by_name_what_vllm_cannot_do_where_it_samples(spec, change, field):
    asked = spec.model_copy(update=change)
    with pytest.raises(InvalidRequestError) as caught:
        admit(engine_can_sample, asked, facts(VLLM))
    assert caught.value.field == field
    admit(engine_can_sample, asked, facts(ServiceConfig()))


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": Sampling(temperature=0.01), "adapter": LoRA(rank=16)},
        {"adapter": FullParameters()},
    ],
)
def test_accepts_what_vllm_can_do(change):
    admit(engine_can_sample, PLAYED.model_copy(update=change), facts(VLLM))


@pytest.mark.parametrize("spec", [PLAYED, WRITTEN])
def test_rejects_training_where_the_engine_never_looks_at_new_weights(spec):
    config = ServiceConfig(engine="scripted")
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "engine_scripted"):
        admit(engine_can_sample, spec, facts(config))


def test_accepts_scripted_engine_with_a_parity_threshold():
    config = ServiceConfig(engine="scripted")
    admit(engine_can_sample, PLAYED.model_copy(update={"parity_threshold": 100.0}), facts(config))


@pytest.mark.parametrize("spec", [PLAYED, WRITTEN])
def test_rejects_full_training_of_mixture_of_experts_under_vllm_sampling(spec, tmp_path):
    shutil.copytree(PACKAGED_MODELS["nano"], tmp_path / "mixture")
    shape = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({"model.layers.1.mlp.experts.0.up_proj.weight": shape}).encode()
    file = tmp_path / "mixture" / "model-experts.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    asked = spec.model_copy(update={"model": str(tmp_path / "mixture"), "adapter": FullParameters()})
    with pytest.raises(InvalidRequestError) as caught:
        admit(engine_can_sample, asked, facts(VLLM))
    assert caught.value.field == "adapter"
    admit(engine_can_sample, asked.model_copy(update={"adapter": LoRA(rank=4)}), facts(VLLM))
    admit(engine_can_sample, asked, facts(ServiceConfig()))
