import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.openai_api.text_request import TextRequest
from tinkergym.schema.parsing import parse


@pytest.mark.parametrize(
    ("given", "prompts"),
    [("a", ["a"]), ([1, 2], [[1, 2]]), (["a", "b"], ["a", "b"]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_takes_one_prompt_or_several(given, prompts):
    assert TextRequest(model="m", prompt=given).prompts == prompts


def test_needs_logprobs_of_a_prompt_that_it_echoes_with_them():
    assert not TextRequest(model="m", prompt="a", echo=True).needs_prompt_logprobs
    assert not TextRequest(model="m", prompt="a", logprobs=1).needs_prompt_logprobs
    assert TextRequest(model="m", prompt="a", echo=True, logprobs=0).needs_prompt_logprobs
    assert TextRequest(model="m", prompt="a", prompt_logprobs=0).needs_prompt_logprobs


def test_needs_as_many_likeliest_prompt_tokens_as_it_shows():
    cases = [{"prompt_logprobs": 4}, {"logprobs": 3}, {"echo": True, "logprobs": 3, "prompt_logprobs": True}]
    found = [TextRequest(model="m", prompt="a", **one).needs_top_prompt_logprobs for one in cases]
    assert found == [4, 0, 3]
    assert (
        TextRequest(model="m", prompt="a", echo=True, logprobs=3, prompt_logprobs=4).needs_top_prompt_logprobs
        == 4
    )


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"prompt": [-1]}, "prompt.0"),
        ({"prompt": ["a", [1]]}, "prompt.1"),
        ({"prompt": 5}, "prompt"),
        ({"stop": ["a"] * 17}, "stop"),
        *(({"prompt_logprobs": wrong}, "prompt_logprobs") for wrong in ("1", 21, -1, 1.5, [1])),
    ],
)
def test_names_what_is_wrong_in_a_value_of_several_kinds(given, field):
    with pytest.raises(InvalidRequestError) as refused:
        parse(TextRequest, {"model": "m", "prompt": "a"} | given)
    assert refused.value.field == field
