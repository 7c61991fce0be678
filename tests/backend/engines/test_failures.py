from backend.engines.failures import images_refused
from tinkergym.schema.sampling import SampleRequest
from tinkergym.trajectory.content_parts import ImageSpan


def request(**settings):
    return SampleRequest(request_id="r", policy="nano", prompt_ids=[1, 2], max_tokens=1, **settings)


def test_rejects_request_with_an_image_by_name():
    refusal = images_refused(request(images=[ImageSpan(sha256="ab" * 32, start=0, end=1)]))
    assert refusal.field == "images"


def test_accepts_request_of_text():
    assert images_refused(request()) is None
