from backend.compute.supported_models import IMAGE_MODELS, has_mrope, sees


def test_supports_images_of_every_model_with_three_dimensional_positions():
    assert {one for one in IMAGE_MODELS if has_mrope(one)} < IMAGE_MODELS
    assert [sees(one) for one in ("qwen3_vl", "idefics3", "llama", None)] == [True, True, False, False]
