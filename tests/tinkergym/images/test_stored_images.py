import hashlib
import io
import pickle

import numpy as np
import pytest
from PIL import Image, ImageOps

from tinkergym.errors import InvalidImageError
from tinkergym.images.stored_images import alive, as_seen, check_image, image_file, opened

PIXELS = np.random.default_rng(0).integers(0, 255, (5, 7, 3), np.uint8)


def encoded(image, form="PNG", **options):
    file = io.BytesIO()
    image.save(file, format=form, **options)
    return file.getvalue()


def test_keeps_pixels_in_a_png_file():
    file = image_file(PIXELS)
    assert (np.asarray(Image.open(io.BytesIO(file.data))) == PIXELS).all()
    assert (file.height, file.width, file.sha256) == (5, 7, hashlib.sha256(file.data).hexdigest())


def test_keeps_same_image_as_one_file_while_it_is_held():
    file = image_file(PIXELS)
    assert image_file(PIXELS.copy()) is file is image_file(file.data) is alive(file.sha256)
    sha256 = file.sha256
    del file
    assert alive(sha256) is None


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_takes_files_as_they_are(form):
    data = encoded(Image.fromarray(PIXELS), form)
    assert image_file(data).data == data


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"no image",
        encoded(Image.fromarray(PIXELS))[:-30],
        encoded(Image.fromarray(PIXELS), "GIF"),
        encoded(Image.new("L", (3, 3)), "WEBP", save_all=True, append_images=[Image.new("L", (3, 3), 9)]),
        PIXELS[:, :, :2],
        PIXELS.astype(np.float32),
        PIXELS[:0],
        "text",
        3,
    ],
    ids=["empty", "text", "cut off", "gif", "animated", "two channels", "floats", "no rows", "str", "int"],
)
def test_rejects_what_is_no_image(value):
    with pytest.raises(InvalidImageError):
        image_file(value)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (encoded(Image.fromarray(PIXELS))[:-30], "PNG, JPEG or WebP"),
        (
            encoded(Image.new("L", (3, 3)), "GIF", save_all=True, append_images=[Image.new("L", (3, 3), 9)]),
            "2",
        ),
        (encoded(Image.fromarray(np.full((3, 3), 40_000, np.uint16))), "8 bits"),
        (encoded(Image.fromarray(np.full((3, 3), 0.5, np.float32)), "TIFF"), "8 bits"),
    ],
    ids=["cut off", "animated", "16 bits", "floats"],
)
def test_rejects_pillow_image_for_what_its_file_would_be(data, fault):
    # Pillow opens a file without decoding it, so it breaks only now.
    with pytest.raises(InvalidImageError, match=fault):
        image_file(Image.open(io.BytesIO(data)))


def test_rejects_16_bits_in_a_file_too():
    with pytest.raises(InvalidImageError):
        image_file(encoded(Image.fromarray(np.full((3, 3), 40_000, np.uint16))))


def test_names_another_format_as_the_reason():
    with pytest.raises(InvalidImageError) as caught:
        image_file(encoded(Image.fromarray(PIXELS), "GIF"))
    assert "0x" not in caught.value.message


def test_recognizes_image_from_another_process_as_the_one_here():
    file = image_file(PIXELS)
    sent = pickle.dumps(file)
    assert pickle.loads(sent) is file
    del file
    received = pickle.loads(sent)
    assert alive(received.sha256) is received


def test_rejects_huge_image_by_its_head():
    bomb = encoded(Image.new("1", (20_000, 20_000)))
    assert len(bomb) < 100_000
    with pytest.raises(InvalidImageError) as caught:
        image_file(bomb)
    # No service can allow it.
    assert "limits." not in caught.value.hint


def test_sets_the_limits():
    data = encoded(Image.fromarray(PIXELS))
    assert check_image(data, most_bytes=len(data), most_pixels=35) == (7, 5)
    with pytest.raises(InvalidImageError):
        check_image(data, most_bytes=len(data) - 1)
    with pytest.raises(InvalidImageError):
        check_image(data, most_pixels=34)


def seen(data):
    with opened(data) as picture:
        return np.asarray(as_seen(picture))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_shows_what_is_transparent_as_white(mode):
    picture = Image.new("RGBA", (4, 4))  # black, and nothing of it shows
    picture.putpixel((1, 2), (0, 0, 0, 255))
    found = seen(encoded(picture.convert(mode)))
    assert (found[2, 1] == 0).all()
    assert (found[0] == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_shows_photo_upright_as_a_file_and_as_a_picture(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(PIXELS), exif=exif.tobytes())
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert (seen(data) == upright).all()
    file = image_file(Image.open(io.BytesIO(data)))
    assert (file.height, file.width) == upright.shape[:2]
    assert (seen(file.data) == upright).all()
    assert check_image(data) == (7, 5)


def test_shows_pixels_of_a_plain_picture_as_they_are():
    assert (seen(image_file(PIXELS).data) == PIXELS).all()


@pytest.mark.parametrize("exif", [b"", b"Exif\x00\x00", b"Exif\x00\x00MM\x00*\xff\xff\xff\xff", b"\x00" * 9])
def test_ignores_broken_data_about_a_camera(exif):
    data = encoded(Image.fromarray(PIXELS), "JPEG", exif=exif)
    assert check_image(data) == (7, 5)
    assert seen(data).shape == PIXELS.shape
