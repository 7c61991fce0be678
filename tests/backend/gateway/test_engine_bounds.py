import pytest

from backend.config import ServiceConfig, VllmSettings
from backend.gateway.engine_bounds import refuse_impossible
from tinkergym.errors import InvalidRequestError
from tinkergym.wire import EnvironmentRef, FullParameters, JobSpec, LoRA, Sampling
from tinkergym.wire_jobs import SFTSpec

VLLM = ServiceConfig(engine="vllm", vllm=VllmSettings(max_adapter_rank=16))
PLAYED = JobSpec(environment=EnvironmentRef(id="x"), steps=1)
WRITTEN = SFTSpec(data="0" * 64, steps=1)


@pytest.mark.parametrize(
    ("spec", "change", "field"),
    [
        (PLAYED, {"sampling": Sampling(temperature=0.005)}, "sampling.temperature"),
        (PLAYED, {"adapter": LoRA(rank=32)}, "adapter.rank"),
        (WRITTEN, {"adapter": LoRA(rank=32)}, "adapter.rank"),
    ],
)
def test_what_vllm_cannot_do_is_refused_by_name_and_only_where_it_samples(spec, change, field):
    asked = spec.model_copy(update=change)
    with pytest.raises(InvalidRequestError, match="vLLM") as caught:
        refuse_impossible(asked, VLLM)
    assert caught.value.field == field
    refuse_impossible(asked, ServiceConfig())


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": Sampling(temperature=0.01), "adapter": LoRA(rank=16)},
        {"adapter": FullParameters()},
    ],
)
def test_what_vllm_can_do_passes(change):
    refuse_impossible(PLAYED.model_copy(update=change), VLLM)
