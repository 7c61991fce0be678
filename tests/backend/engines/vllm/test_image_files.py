"""What vLLM's process is told of images, without vLLM."""

from pathlib import Path

import pytest

from backend.engines.vllm.image_files import HandedImages
from backend.settings.served_models import VLLM_MOST_IMAGES
from backend.vision.pixels import ImageReader
from tests.backend.vlm import NANO_VL, Pictures, look, picture, renderer


@pytest.fixture
def handed(tmp_path):
    reader = ImageReader(NANO_VL, renderer().images.placeholder, Pictures())
    size = len(picture(0).data)
    return HandedImages(reader, tmp_path / "images", most_bytes=2 * size + size // 2)


def test_stores_image_as_one_file_and_finds_tokens_by_markers(handed, tmp_path):
    request = look("r", 1, 2, 1)
    told = handed.message(request.images)
    rules = renderer().images
    assert [one["sha256"] for one in told] == [picture(number).sha256 for number in (1, 2, 1)]
    assert len(list((tmp_path / "images").iterdir())) == 2
    for one, image in zip(told, request.images, strict=True):
        ids = request.prompt_ids[one["begin"] : one["end"]]
        assert ids == [*rules.before, *[rules.placeholder] * rules.tokens, *rules.after]
        assert one["begin"] < image.start < image.end < one["end"]
        assert one["placeholder"] == rules.placeholder
        assert Path(one["path"]).read_bytes() in {picture(1).data, picture(2).data}


def test_evicts_files_for_others_but_none_in_use(handed, tmp_path):
    def there():
        return {path.name for path in (tmp_path / "images").iterdir()}

    for number in range(4):
        handed.message(look("r", number).images)
    handed.tidy(lambda: {picture(0).sha256})
    assert there() == {picture(0).sha256, picture(3).sha256}
    (again,) = handed.message(look("r", 1).images)
    assert Path(again["path"]).read_bytes() == picture(1).data


def test_rejects_more_images_than_vllm_has_room_for(handed):
    request = look("r", 1)
    crowd = request.model_copy(update={"images": request.images * (VLLM_MOST_IMAGES + 1)})
    assert handed.refusal(request) is None
    assert handed.refusal(crowd).field == "images"
