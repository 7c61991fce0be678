import pytest

from backend.compute.layer_names import names, no_such_layer

PATH = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    "pattern", ["q_proj", "*_proj", PATH, "layers.0.*", "layers.*.q_proj", "self_attn.q_proj"]
)
def test_names_layer_by_its_name_its_path_or_its_end(pattern):
    assert names(pattern, PATH)


@pytest.mark.parametrize("pattern", ["proj", "attn.q_proj", "k_proj", "layers.1.*", "Q_PROJ"])
def test_names_no_layer_by_other_patterns(pattern):
    assert not names(pattern, PATH)


def test_lists_layers_for_a_pattern_that_names_none():
    error = no_such_layer("z_proj", ["a.q_proj", "b.q_proj", "b.k_proj"])
    assert error.field == "adapter.target_modules"
