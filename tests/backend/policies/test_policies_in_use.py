from backend.policies.policies_in_use import PoliciesInUse
from tinkergym.schema.sampling import Completion, SampleRequest


def request(request_id, policy="job-1@3"):
    return SampleRequest(request_id=request_id, policy=policy, prompt_ids=[1], max_tokens=1)


def answer(request_id):
    return Completion(
        request_id=request_id, token_ids=[1], sampling_logprobs=[-1.0], finish_reason="stop", policy_version=0
    )


def test_uses_a_policy_until_all_its_requests_are_answered():
    in_use, arrived = PoliciesInUse(), []
    answering = in_use.answering(arrived.extend)
    for request_id in ("a", "b"):
        answering.takes(request(request_id))
    answering.takes(request("c", "job-2@1"))
    answering([answer("a")])
    assert "job-1@3" in in_use
    answering([answer("b")])
    assert "job-1@3" not in in_use
    assert "job-2@1" in in_use
    assert [one.request_id for one in arrived] == ["a", "b"]


def test_lets_two_callers_use_one_policy_under_same_names():
    in_use = PoliciesInUse()
    first, second = in_use.answering(lambda answers: None), in_use.answering(lambda answers: None)
    first.takes(request("a"))
    second.takes(request("a"))
    first([answer("a")])
    assert "job-1@3" in in_use
    second([answer("a")])
    assert "job-1@3" not in in_use


def test_frees_policy_before_its_answer_is_handed_on():
    in_use, seen = PoliciesInUse(), []
    answering = in_use.answering(lambda answers: seen.append("job-1@3" in in_use))
    answering.takes(request("a"))
    answering([answer("a")])
    assert seen == [False]


def test_holds_nothing_for_a_caller_that_hung_up():
    class Caller:
        gone = False

        def __call__(self, answers):
            pass

    in_use, caller = PoliciesInUse(), Caller()
    in_use.answering(caller).takes(request("a"))
    assert "job-1@3" in in_use
    caller.gone = True
    assert "job-1@3" not in in_use
