import pytest

from backend.planning.wishes import ModelPlacement
from backend.settings.served_models import PACKAGED_MODELS, ServedModels
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.parsing import parse


def test_runs_model_where_it_says_and_otherwise_where_all_do():
    own = {"path": "/models/large", "placement": {"gpus": 2}}
    served = parse(ServedModels, {"models": {"large": own}, "placement": {"gpus": 1}})
    assert [served.placement_of(name).gpus for name in ("large", "nano", "elsewhere")] == [2, 1, 1]
    assert served.model_paths == {**PACKAGED_MODELS, "large": "/models/large"}


def test_trains_quantized_model_by_one_rank():
    models = {"large": {"path": "/models/large", "quantized": "nf4"}}
    served = parse(ServedModels, {"models": models})
    assert (served.quantization_of("large"), served.placement_of("large").learner.ranks) == ("nf4", 1)
    assert (served.quantization_of("nano"), served.placement_of("nano")) == ("", ModelPlacement())
    with pytest.raises(InvalidRequestError) as refused:
        parse(ServedModels, {"models": models, "engine": "vllm"})
    assert refused.value.field == "models.large.quantized"
