from pathlib import Path

import pytest

from backend.catalog.image_rules import image_rules
from tinkergym.errors import UnknownModelError

CONFIG = {"model_type": "idefics3", "image_token_id": 7}
PROCESSOR = {"image_processor": {"do_image_splitting": False}, "image_seq_len": 16}
TOKENS = {"<fake_token_around_image>": 3, "<global-img>": 4}


def rules(config=None, processor=None, tokens=None):
    return image_rules(
        CONFIG if config is None else config,
        PROCESSOR if processor is None else processor,
        TOKENS if tokens is None else tokens,
        Path("/models/m"),
    )


def test_places_image_placeholders_between_markers():
    found = rules()
    assert (found.placeholder, found.tokens, found.before, found.after) == (7, 16, [3, 4], [3])


def test_has_no_rules_for_model_of_text():
    assert rules(config={"model_type": "llama"}) is None


@pytest.mark.parametrize(
    "given",
    [
        {"processor": {}},
        {"processor": {**PROCESSOR, "image_processor": {}}},
        {"processor": {"image_processor": {"do_image_splitting": False}}},
        {"tokens": {"<global-img>": 4}},
        {"config": {"model_type": "idefics3"}},
    ],
)
def test_says_what_the_files_lack(given):
    with pytest.raises(UnknownModelError) as caught:
        rules(**given)
    assert caught.value.field == "model"
