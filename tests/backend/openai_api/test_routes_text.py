import json

import pytest

pytestmark = pytest.mark.service


@pytest.fixture
def complete(api):
    """Return a function that lets a model continue a text."""

    def complete(prompt="SAY hi<|im_end|>", **more):
        return api.post("completions", json={"model": "nano", "prompt": prompt, **more})

    return complete


def test_continues_texts_and_ids_as_they_are(complete, service):
    reply = complete(["SAY a<|im_end|>", "SAY b<|im_end|>"], n=2).json()
    assert [choice["text"] for choice in reply["choices"]] == ["a", "a", "b", "b"]
    assert [choice["finish_reason"] for choice in reply["choices"]] == ["stop"] * 4
    prompts = [wanted.prompt_ids for wanted in service.sampled[-1]]
    again = complete(prompts[2], return_token_ids=True).json()
    assert (again["choices"][0]["text"], again["choices"][0]["prompt_token_ids"]) == ("b", prompts[2])
    assert reply["usage"]["prompt_tokens"] == len(prompts[0]) + len(prompts[2])


def test_echoes_the_prompt_with_its_logprobs(complete, service):
    (choice,) = complete("SAY h<|im_end|>", echo=True, logprobs=1, max_tokens=1).json()["choices"]
    assert choice["text"] == "SAY h<|im_end|>h"
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert found["token_logprobs"][0] is None and found["token_logprobs"][-1] == 0.0
    assert found["top_logprobs"] == [None, *({token: 0.0} for token in found["tokens"][1:])]
    assert (found["text_offset"][0], found["text_offset"][-1]) == (0, len(choice["text"]) - 1)
    assert [len(value) for value in found.values()] == [len(found["tokens"])] * 4


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"n": 100, "prompt": ["a", "b"]}, "n"),
        ({"prompt": []}, "prompt"),
    ],
)
def test_refuses_by_name(complete, given, param):
    refused = complete(**given)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["param"].partition(".")[0] == param


def test_scores_the_prompt_for_every_completion(complete):
    reply = complete("SAY h<|im_end|>", n=2, echo=True, logprobs=0, max_tokens=1).json()
    first, second = (choice["logprobs"]["token_logprobs"] for choice in reply["choices"])
    assert first == second
    assert None not in first[1:]


def test_bounds_logprobs_that_every_choice_repeats(complete):
    refused = complete("a" * 450, n=128, prompt_logprobs=20, max_tokens=1)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")


def test_closes_streamed_choices_with_what_was_asked(complete):
    wanted = {"stream": True, "return_token_ids": True, "prompt_logprobs": True}
    lines = [line[6:] for line in complete(**wanted).text.split("\n") if line.startswith("data: {")]
    last = next(one for one in reversed([json.loads(line) for line in lines]) if one["choices"])
    assert last["choices"][0]["prompt_token_ids"]
    assert last["choices"][0]["prompt_logprobs"]


def test_refuses_a_prompt_without_tokens(complete):
    reply = complete("")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")
