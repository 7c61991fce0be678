"""Which messages the process has, and which of them wait for a place."""

from types import SimpleNamespace

from backend.engines.vllm.open_requests import OpenRequest, OpenRequests
from tinkergym.errors import InternalServiceError
from tinkergym.schema.sampling import SampleRequest


def sampling(owner="a", key=1, deliver=None):
    request = SampleRequest(
        request_id="r", policy="p", policy_version=1, prompt_ids=[5], max_tokens=1, session_id=f"{owner}/"
    )
    return OpenRequest({"do": "sample", "policy": key}, request, deliver)


def command():
    return OpenRequest({"do": "load"})


def test_gives_another_tenant_a_place_that_one_is_refused():
    requests = OpenRequests(places=2)
    first, second, other = sampling("a"), sampling("a"), sampling("b")
    for entry in (first, second, other):
        requests.add(entry)
    assert requests.admitted() == [first, other]
    assert requests.sent() == [first, other]
    requests.remove([first.message["id"]])
    assert requests.admitted() == [second]


def test_sends_commands_without_a_place():
    requests = OpenRequests(places=1)
    load = command()
    requests.add(load)
    assert (requests.admitted(), requests.sent()) == ([], [load])


def test_closes_each_message_once():
    requests = OpenRequests(places=1)
    entry = sampling()
    requests.add(entry)
    number = entry.message["id"]
    assert requests.remove([number]) == [entry]
    assert requests.remove([number]) == []
    assert not requests


def test_finds_messages_of_policies_and_of_senders_that_are_gone():
    requests = OpenRequests(places=4)
    kept, left = sampling(key=1), sampling(key=2, deliver=SimpleNamespace(gone=True))
    batch = OpenRequest({"do": "together", "requests": [{"policy": 1}, {"policy": 2}]}, batch_of="a")
    for entry in (kept, left, batch):
        requests.add(entry)
    assert list(requests.of_policy(1).values()) == [kept, batch]
    assert requests.unwanted() == [left.message["id"]]


def test_fails_request_through_its_callback_and_command_through_its_result():
    answers = []
    sampling(deliver=answers.extend).fail(InternalServiceError("broken"))
    assert [answer.error.type for answer in answers] == ["InternalServiceError"]
    load = command()
    load.fail(InternalServiceError("broken"))
    assert isinstance(load.result.result(timeout=0)["refused"], InternalServiceError)
