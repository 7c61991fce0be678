import pytest

from tinkergym.openai_api.sampling_fields import ReplyFormat, SamplingFields


@pytest.mark.parametrize(
    "neutral",
    [
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1},
        {"logit_bias": {}, "functions": [], "modalities": ["text"], "best_of": 1},
        {"metadata": {"a": "b"}, "service_tier": "auto", "store": False, "user": None},
    ],
)
def test_takes_neutral_values_of_what_it_does_not_support(neutral):
    assert SamplingFields(model="m", **neutral) == SamplingFields(model="m")


def test_takes_one_stop_string_or_several():
    assert SamplingFields(model="m", stop="a").stops == ("a",)
    assert SamplingFields(model="m", stop=["a", "b"]).stops == ("a", "b")
    assert SamplingFields(model="m").stops == ()


def test_constrains_json_without_a_schema_to_an_object():
    assert ReplyFormat(type="text").structured is None
    assert ReplyFormat(type="json_object").structured.json_schema == {"type": "object"}
