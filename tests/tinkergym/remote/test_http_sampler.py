from contextlib import contextmanager
from queue import SimpleQueue

import numpy as np
import pytest

from tinkergym.errors import InvalidImageError, InvalidRequestError, NotFoundError, ServiceUnavailableError
from tinkergym.images.stored_images import image_file
from tinkergym.remote.http_sampler import HttpSampler
from tinkergym.remote.image_upload import ImageUpload
from tinkergym.remote.transport import Connection
from tinkergym.schema.sampling import BEYOND_RATE, Completion, SampleBatch, SampleFailure, SampleRequest
from tinkergym.schema.uploaded_data import ImageNames
from tinkergym.trajectory.content_parts import ImageSpan


class ImageRoutes:
    """The service's images, as an `ImageUpload` sees them."""

    def __init__(self):
        self.kept = set()
        self.errors = {}

    def call(self, method, path, *, body, params=None):
        if method == "PUT":
            sha256 = path.rpartition("/")[2]
            if sha256 in self.errors:
                raise self.errors[sha256]
            self.kept.add(sha256)
            return b"{}"
        wanted = ImageNames.model_validate_json(body).images
        return ImageNames(images=[one for one in wanted if one not in self.kept]).model_dump_json().encode()


@pytest.fixture
def pictures():
    return [image_file(np.full((2, 2, 3), shade, np.uint8)) for shade in range(3)]


@pytest.fixture
def connection(service):
    with Connection(service.url, token=service.api_key) as connection:
        yield connection


@pytest.fixture
def open_sampler(connection):
    opened = []

    def open_it(path="/v1/sample", **settings):
        opened.append(HttpSampler(connection, path, **settings))
        return opened[-1]

    yield open_it
    for sampler in opened:
        sampler.close()


@pytest.fixture
def sampler(open_sampler):
    return open_sampler()


def request(name: str, **fields) -> SampleRequest:
    return SampleRequest(request_id=name, policy="nano", prompt_ids=[1, 2, 3], max_tokens=8, **fields)


def showing(name: str, *pictures) -> SampleRequest:
    spans = [ImageSpan(sha256=one.sha256, start=place, end=place + 1) for place, one in enumerate(pictures)]
    return request(name, images=spans)


def answers(inbox: SimpleQueue, count: int) -> dict[str, object]:
    found = {}
    while len(found) < count:
        for answer in inbox.get(timeout=120):
            assert answer.request_id not in found
            found[answer.request_id] = answer
    return found


def test_sends_joint_submissions_as_one_batch_and_answers_each_once(service, sampler):
    inbox = SimpleQueue()
    sampler.submit([request(f"r{n}", policy_version=3) for n in range(50)], inbox.put)
    found = answers(inbox, 50)
    assert [len(batch) for batch in service.sampled] == [50]
    assert all(isinstance(a, Completion) and a.policy_version == 3 for a in found.values())
    assert len(found["r7"].token_ids) == len(found["r7"].sampling_logprobs)


def test_waits_for_requests_that_are_expected_soon(service, sampler):
    inbox, left = SimpleQueue(), ["late"]

    def soon():
        if left:
            sampler.submit([request(left.pop())], inbox.put)
            return 1
        return 0

    sampler.expect(soon)
    sampler.submit([request("early")], inbox.put)
    answers(inbox, 2)
    assert [len(batch) for batch in service.sampled] == [2]


def test_sends_smaller_batches_if_the_key_can_owe_no_more():
    class Limited:
        """A service whose key gets tokens for two requests at once."""

        @contextmanager
        def stream(self, method, path, *, body, timeout_seconds):
            requests = SampleBatch.model_validate_json(body).requests
            if len(requests) > 2:
                raise InvalidRequestError("too many", code=BEYOND_RATE)
            rest = {"token_ids": [], "sampling_logprobs": [], "finish_reason": "stop", "policy_version": 0}
            answers = [Completion(request_id=one.request_id, **rest) for one in requests]
            yield [f"{one.model_dump_json()}\n".encode() for one in answers]

    inbox, sampler = SimpleQueue(), HttpSampler(Limited(), "/v1/sample")
    sampler.submit([request(f"r{n}") for n in range(5)], inbox.put)
    assert all(isinstance(one, Completion) for one in answers(inbox, 5).values())
    sampler.close()


def test_answers_many_single_submissions_in_fewer_batches(service, sampler):
    inbox = SimpleQueue()
    for number in range(200):
        sampler.submit([request(f"r{number}")], inbox.put)
    assert len(answers(inbox, 200)) == 200
    assert len(service.sampled) < 200


@pytest.mark.parametrize("status", [None, 503])
def test_asks_again_for_answers_that_got_lost(service, sampler, status):
    service.break_next("POST /v1/sample", status=status)
    inbox = SimpleQueue()
    sampler.submit([request("a"), request("b")], inbox.put)
    assert all(isinstance(answer, Completion) for answer in answers(inbox, 2).values())


def test_fails_every_request_with_services_error_after_the_patience(service, open_sampler):
    for _ in range(30):
        service.break_next("POST /v1/sample", status=503)
    sampler = open_sampler(patience_seconds=0.3)
    inbox = SimpleQueue()
    sampler.submit([request("a"), request("b")], inbox.put)
    found = answers(inbox, 2)
    assert all(isinstance(answer, SampleFailure) for answer in found.values())
    assert found["a"].error.type == "ServiceUnavailableError"


def test_retries_busy_service_past_all_patience(service, open_sampler):
    for _ in range(30):
        service.break_next("POST /v1/sample", status=429)
    sampler = open_sampler(patience_seconds=0.0, full_pause_seconds=0.01)
    inbox = SimpleQueue()
    sampler.submit([request("a")], inbox.put)
    assert isinstance(answers(inbox, 1)["a"], Completion)


def test_fails_immediately_on_error_that_retries_cannot_fix(open_sampler):
    sampler = open_sampler("/v1/nowhere")
    inbox = SimpleQueue()
    sampler.submit([request("a")], inbox.put)
    assert answers(inbox, 1)["a"].error.type == "NotFoundError"


def test_takes_nothing_more_when_closed(sampler):
    sampler.close()
    with pytest.raises(ServiceUnavailableError):
        sampler.submit([request("a")], lambda answers: None)


def test_spreads_long_prompts_over_acceptable_batches(service, sampler):
    inbox = SimpleQueue()
    long = [n % 250 for n in range(75_000)]
    requests = [
        SampleRequest.model_construct(
            request_id=f"r{n}",
            policy="nano",
            policy_version=None,
            prompt_ids=long,
            max_tokens=1,
            temperature=1.0,
            seed=0,
            stop_ids=[],
            session_id="",
        )
        for n in range(4)
    ]
    sampler.submit(requests, inbox.put)
    assert len(answers(inbox, 4)) == 4
    assert sorted(len(batch) for batch in service.sampled) == [1, 3]


def test_fails_only_requests_showing_an_image_the_service_refuses(service, open_sampler, pictures):
    routes = ImageRoutes()
    good, large, other = pictures
    routes.errors[large.sha256] = InvalidImageError("it is too large")
    sampler = open_sampler(images=ImageUpload(routes, "/v1/images"))
    inbox = SimpleQueue()
    requests = [showing("bad", good, large), showing("good", good), showing("other", other), request("text")]
    sampler.submit(requests, inbox.put)
    found = answers(inbox, 4)
    assert found["bad"].error.type == "InvalidImageError"
    assert all(isinstance(found[name], Completion) for name in ("good", "other", "text"))
    assert routes.kept == {good.sha256, other.sha256}
    # With no request left, nothing is posted.
    sampler.submit([showing("worse", large)], inbox.put)
    assert answers(inbox, 1)["worse"].error.type == "InvalidImageError"
    assert len(service.sampled) == 1


def test_holds_requests_while_no_image_can_be_sent(service, open_sampler, pictures, monkeypatch):
    routes = ImageRoutes()
    routes.errors[pictures[0].sha256] = ServiceUnavailableError("the service starts")
    sampler = open_sampler(images=ImageUpload(routes, "/v1/images"))
    call, tried = routes.call, []

    def starting(method, path, **options):
        if method == "PUT" and tried:
            routes.errors.clear()
        tried.append(method)
        return call(method, path, **options)

    monkeypatch.setattr(routes, "call", starting)
    inbox = SimpleQueue()
    sampler.submit([showing("a", pictures[0])], inbox.put)
    assert isinstance(answers(inbox, 1)["a"], Completion)


@pytest.mark.parametrize("comes_back", [True, False])
def test_sends_deleted_images_again_once(service, open_sampler, pictures, monkeypatch, comes_back):
    routes = ImageRoutes()
    sampler = open_sampler(images=ImageUpload(routes, "/v1/images"))
    answer = service.pool.answers

    def refusing(requests):
        if not comes_back:
            routes.kept.clear()
        lacking = [one for one in requests if not routes.kept.issuperset(i.sha256 for i in one.images)]
        error = NotFoundError("there is no such image", field="images").to_wire()
        lost = [SampleFailure(request_id=one.request_id, error=error) for one in lacking]
        return answer([one for one in requests if one not in lacking]) + lost

    monkeypatch.setattr(service.pool, "answers", refusing)
    inbox = SimpleQueue()
    sampler.submit([showing("before", pictures[0])], inbox.put)
    assert isinstance(answers(inbox, 1)["before"], Completion) is comes_back
    routes.kept.clear()
    sampler.submit([showing("after", pictures[0]), request("text")], inbox.put)
    found = answers(inbox, 2)
    assert isinstance(found["after"], Completion) is comes_back
    assert isinstance(found["text"], Completion)
