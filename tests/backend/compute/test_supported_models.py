import pytest
from torch import nn
from transformers import Qwen3Config

from backend.compute.supported_models import IMAGE_MODELS, has_mrope, keeps_a_state, sees


def test_supports_images_of_every_model_with_three_dimensional_positions():
    assert {one for one in IMAGE_MODELS if has_mrope(one)} < IMAGE_MODELS
    assert [sees(one) for one in ("qwen3_vl", "idefics3", "llama", None)] == [True, True, False, False]


class Model(nn.Module):
    def __init__(self, layer_types, stateful=False):
        super().__init__()
        self.config = Qwen3Config()
        self.config.layer_types = layer_types
        self.part = nn.Linear(1, 1)
        if stateful:
            self.part._is_stateful = True


@pytest.mark.parametrize(
    ("layer_types", "stateful", "keeps"),
    [
        (None, False, False),
        (["full_attention", "sliding_attention"], False, False),
        (["full_attention", "linear_attention"], False, True),
        (["full_attention"], True, True),
    ],
)
def test_keeps_a_state_if_any_layer_of_the_model_does(layer_types, stateful, keeps):
    assert keeps_a_state(Model(layer_types, stateful)) is keeps
