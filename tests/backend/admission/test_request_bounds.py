import pytest

from backend.admission.request_bounds import refuse_too_many_logprobs
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.sampling import MOST_EXTRA_LOGPROBS, SampleRequest


def ask(**settings):
    return SampleRequest(request_id="r", policy="p", prompt_ids=[1] * 10, **{"max_tokens": 50, **settings})


def test_takes_exactly_as_many_logprobs_as_one_call_gives():
    most = ask(max_tokens=MOST_EXTRA_LOGPROBS // 20, top_logprobs=20)
    refuse_too_many_logprobs([most, ask(max_tokens=10**9)])
    for more in (ask(prompt_logprobs=True), ask(top_logprobs=1, max_tokens=1)):
        with pytest.raises(InvalidRequestError) as refused:
            refuse_too_many_logprobs([most, more])
        assert refused.value.field == "requests.top_logprobs"
