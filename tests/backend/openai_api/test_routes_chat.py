import pytest

pytestmark = pytest.mark.service

ASKED = [{"role": "user", "content": "SAY hello"}]


def error_of(response):
    return response.json()["error"]


def test_answers_as_clients_of_the_api_expect(chat, service):
    reply = chat("SAY hello", n=2).json()
    assert (reply["object"], reply["model"]) == ("chat.completion", "nano")
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert {choice["finish_reason"] for choice in reply["choices"]} == {"stop"}
    prompt = service.sampled[-1][0].prompt_ids
    tokens = 2 * len("hello") + 2  # and the tokens that end them
    assert reply["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": tokens,
        "total_tokens": len(prompt) + tokens,
    }


def test_passes_settings_to_the_engine(chat, service):
    chat(temperature=0.5, top_p=0.9, top_k=7, max_tokens=3, seed=40, n=2, stop=".")
    first, second = service.sampled[-1]
    assert (first.temperature, first.top_p, first.top_k, first.max_tokens) == (0.5, 0.9, 7, 3)
    assert (first.seed, second.seed, first.stop) == (40, 41, (".",))


def test_samples_the_whole_distribution_to_the_end_by_default(chat, service):
    chat(top_k=-1, temperature=None, stop=None)
    (wanted,) = service.sampled[-1]
    assert (wanted.temperature, wanted.top_p, wanted.top_k, wanted.stop) == (1.0, 1.0, 0, ())
    assert wanted.max_tokens == 512 - len(wanted.prompt_ids)


def test_returns_ids_and_logprobs_as_vllm_does(chat, service):
    reply = chat("SAY hé", logprobs=True, top_logprobs=1, return_token_ids=True, prompt_logprobs=1).json()
    (choice,) = reply["choices"]
    (wanted,) = service.sampled[-1]
    assert (wanted.prompt_logprobs, wanted.top_prompt_logprobs) == (True, 1)
    assert reply["prompt_token_ids"] == wanted.prompt_ids
    assert [set(one) for one in reply["prompt_logprobs"][1:]] == [{str(i)} for i in wanted.prompt_ids[1:]]
    scored = reply["prompt_logprobs"][1][str(wanted.prompt_ids[1])]
    assert (scored["logprob"], scored["rank"], set(scored)) == (0.0, 1, {"logprob", "rank", "decoded_token"})
    tokens = choice["logprobs"]["content"]
    assert len(choice["token_ids"]) == len(tokens)
    # A token here is a byte, so the accented letter has two.
    assert bytes(b for token in tokens[:-1] for b in token["bytes"]).decode() == "hé"
    assert tokens[0]["top_logprobs"] == [{"token": "h", "logprob": 0.0, "bytes": [104]}]


def test_ignores_what_concerns_openai_alone(chat):
    without_effect = {
        **{"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        **{"parallel_tool_calls": True, "frequency_penalty": 0, "logit_bias": {}, "audio": None},
    }
    assert chat(**without_effect).status_code == 200


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "structured"),
        ({"structured_outputs": {"regex": "a+"}}, "structured"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"audio": {"voice": "a"}}, "audio"),
        ({"temprature": 0.5}, "temprature"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "judge", "content": "a"}]}, "messages"),
        ({"messages": [*ASKED, {"role": "tool", "tool_call_id": "c", "content": "5"}]}, "messages[1]"),
    ],
)
def test_refuses_by_name(chat, given, param):
    refused = chat(**given)
    error = error_of(refused)
    assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
    assert (error["param"], set(error)) == (param, {"message", "type", "param", "code"})


@pytest.mark.parametrize("name", ["gpt-9", "job-404", "job-", "policy-x@best", "nano@40"])
def test_answers_unknown_models_with_404_and_never_the_base(chat, service, name):
    before = len(service.sampled)
    missing = chat(model=name)
    assert (missing.status_code, error_of(missing)["code"]) == (404, "model_not_found")
    assert (error_of(missing)["param"], len(service.sampled)) == ("model", before)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"messages": [{"role": "user", "content": "a" * 600}]}, "messages"),
        ({"max_tokens": 512}, "max_tokens"),
        ({"max_completion_tokens": 512}, "max_completion_tokens"),
        ({"max_completion_tokens": 512, "max_tokens": 600, "stream": True}, "max_completion_tokens"),
    ],
)
def test_names_the_context_length_that_a_request_exceeds(chat, given, param):
    refused = chat(**given)
    error = error_of(refused)
    assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
    assert (error["param"], "512" in error["message"]) == (param, True)


def test_samples_up_to_the_end_of_the_context(chat, service):
    chat()
    (whole,) = service.sampled[-1]
    assert chat(max_tokens=whole.max_tokens).status_code == 200
    assert chat(max_tokens=whole.max_tokens + 1).status_code == 400


@pytest.mark.parametrize("body", [b"{", b"[1]", b"", b'"a"'])
def test_refuses_bodies_that_are_no_json_objects(api, body):
    refused = api.post("chat/completions", content=body)
    assert (refused.status_code, error_of(refused)["type"]) == (400, "invalid_request_error")


def test_answers_wrong_keys_and_paths_in_the_same_format(api):
    keyless = api.post("chat/completions", json={}, headers={"Authorization": "Bearer tg-no"})
    assert (keyless.status_code, error_of(keyless)["code"]) == (401, "invalid_api_key")
    lost = api.post("embeddings", json={"input": "a"})
    assert (lost.status_code, error_of(lost)["type"]) == (404, "invalid_request_error")
    large = api.post("chat/completions", content=b" " * (9 * 2**20))
    assert (large.status_code, error_of(large)["type"]) == (413, "invalid_request_error")
    elsewhere = api.get("models", headers={"Host": "evil.example"})
    assert (elsewhere.status_code, set(error_of(elsewhere))) == (421, {"message", "type", "param", "code"})


def test_refuses_keys_beyond_their_rate_as_openai_does(chat, api, service):
    api.headers["Authorization"] = f"Bearer {service.limited_key(tokens_per_minute=5)}"
    assert chat(stream=True).status_code == 200
    refused = chat()
    error = error_of(refused)
    assert (refused.status_code, error["type"]) == (429, "rate_limit_error")
    assert error["code"] == "rate_limit_exceeded"
    assert int(refused.headers["Retry-After"]) > 60
