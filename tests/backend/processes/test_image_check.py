import io

import pytest
from PIL import Image

from backend.processes.image_check import ImageCheck
from backend.processes.limited_child import ChildLimitError, ChildLimits
from benchmarks.hostile_images import files, progressive
from tinkergym.errors import InvalidImageError, ServiceUnavailableError
from tinkergym.images.stored_images import MOST_BYTES, MOST_PIXELS

SERVICE = {"most_bytes": MOST_BYTES, "most_pixels": MOST_PIXELS}
SMALL = ChildLimits(cpu_seconds=1, memory_bytes=2**29, wall_seconds=120.0)
"""Far below the service's: a file that needs more is refused before it is decoded."""


@pytest.fixture
def checks():
    """Return a function that starts a check, which ends with the test."""
    started = []

    def start(limits=SMALL):
        started.append(ImageCheck(limits))
        return started[-1]

    yield start
    for check in started:
        check.close()


def encoded(form="PNG", size=(7, 5), **options):
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, form, **options)
    return file.getvalue()


def test_bounds_time_and_memory_for_hostile_images(checks):
    check, stopped = checks(), []
    for name, data in files():
        try:
            check(data, **SERVICE)
        except InvalidImageError as error:
            stopped += [name] if isinstance(error.__cause__, ChildLimitError) else []
    assert stopped == []


def test_returns_size_of_an_image_or_names_what_is_wrong(checks):
    check = checks()
    assert check(encoded(), **SERVICE) == (7, 5)
    for data, limits, words in (
        (encoded("GIF"), {}, "PNG, JPEG or WebP"),
        (encoded()[:-30], {}, "PNG, JPEG or WebP"),
        (encoded(), {"most_pixels": 34}, r"limits\.image_pixels"),
        (encoded(), {"most_bytes": 9}, r"limits\.image_bytes"),
    ):
        with pytest.raises(InvalidImageError, match=words):
            check(data, **{**SERVICE, **limits})


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"memory_bytes": 2**22, "cpu_seconds": 9, "wall_seconds": 120.0}, InvalidImageError),
        ({"memory_bytes": 2**29, "cpu_seconds": 9, "wall_seconds": 0.001}, ServiceUnavailableError),
    ],
    ids=["memory", "a busy machine"],
)
def test_refuses_what_is_not_decoded_within_the_limits(checks, limits, error):
    with pytest.raises(error) as caught:
        checks(ChildLimits(**limits))(progressive(4000, 4000, 20), **SERVICE)
    assert isinstance(caught.value.__cause__, ChildLimitError)
