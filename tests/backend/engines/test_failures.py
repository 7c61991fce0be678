from pathlib import Path

import pytest

from backend.engines.failures import images_refused, stops_refused, structure_impossible, structure_refused
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.agent.stop_strings import stops_of
from tinkergym.schema.sampling import SampleRequest
from tinkergym.schema.structured import Regex
from tinkergym.trajectory.content_parts import ImageSpan


def request(**settings):
    return SampleRequest(request_id="r", policy="nano", prompt_ids=[1, 2], max_tokens=1, **settings)


def test_rejects_request_with_an_image_by_name():
    refusal = images_refused(request(images=[ImageSpan(sha256="ab" * 32, start=0, end=1)]))
    assert refusal.field == "images"


def test_accepts_request_of_text():
    assert images_refused(request()) is None


PLAIN = SampleRequest(request_id="r", policy="p", prompt_ids=[1], max_tokens=2, seed=0)
PATTERN = PLAIN.model_copy(update={"structured": Regex(pattern="a+")})


def test_accepts_plain_request_everywhere():
    assert structure_refused(PLAIN, "transformers") is None
    assert structure_impossible(PLAIN, model="m", has_tokenizer=False, has_stop=False) is None
    assert images_refused(PLAIN) is None


@pytest.mark.parametrize(
    ("has_tokenizer", "has_stop", "field"),
    [(False, True, "structured"), (True, False, "stop_ids"), (True, True, None)],
)
def test_requires_text_of_tokens_and_an_end_for_a_structure(has_tokenizer, has_stop, field):
    error = structure_impossible(PATTERN, model="m", has_tokenizer=has_tokenizer, has_stop=has_stop)
    assert (error.field if error else None) == field


def test_names_engine_that_samples_freely():
    error = structure_refused(PATTERN, "scripted")
    assert error.field == "structured"


def test_requires_the_models_tokenizer_for_stop_strings(tmp_path):
    nano = Path(PACKAGED_MODELS["nano"])
    assert stops_refused(request(seed=0), None) is None
    assert stops_refused(request(seed=0, stop=["END"]), nano) is None
    for folder in (None, tmp_path):
        assert stops_refused(request(seed=0, stop=["END"]), folder).field == "stop"
    assert stops_of(request(seed=0), nano) is None
    assert stops_of(request(seed=0, stop=["END"]), nano) is not None
