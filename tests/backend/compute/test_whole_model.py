import pytest
import torch
from transformers import AutoModelForCausalLM

from backend.learner.causal_lm import CausalLM
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.errors import UnknownModelError

CPU = torch.device("cpu")


def nano(dtype):
    return AutoModelForCausalLM.from_pretrained(PACKAGED_MODELS["nano"], dtype=dtype)


@pytest.mark.parametrize("fault", ["no head", "another shape"])
def test_rejects_incomplete_weights_or_weights_of_another_shape(fault, tmp_path):
    model = nano(torch.float32)
    weights = dict(model.state_dict())
    if fault == "no head":
        del weights["lm_head.weight"]
    else:
        weights["model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 5)
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(UnknownModelError) as caught:
        CausalLM.load(tmp_path, device=CPU, dtype=torch.float32)
    assert caught.value.field == "model"
    assert ("lm_head.weight" if fault == "no head" else "up_proj") in caught.value.message
