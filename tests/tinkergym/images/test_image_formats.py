import contextlib
import io
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from benchmarks.hostile_images import files, png, progressive
from tinkergym.errors import InvalidImageError
from tinkergym.images.image_formats import MOST_BLOCKS, MOST_SCANS, essential
from tinkergym.images.stored_images import check_image, opened

ROOT = Path(__file__).parents[3]
PIXELS = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 40, 4), np.uint8))
EXIF = Image.Exif()
EXIF[0x010E] = "a description"


def encoded(picture, form, **options):
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def with_texts(**texts):
    info = PngImagePlugin.PngInfo()
    for key, value in texts.items():
        info.add_itxt(key, value, zip=True)
    return info


METADATA = {"icc_profile": bytes(range(256)) * 300, "exif": EXIF.tobytes()}
FILES = {
    "jpeg": encoded(PIXELS.convert("RGB"), "JPEG", comment=b"words", **METADATA),
    "progressive": encoded(PIXELS.convert("RGB"), "JPEG", progressive=True, restart_marker_blocks=1),
    "grey": encoded(PIXELS.convert("L"), "JPEG"),
    "cmyk": encoded(PIXELS.convert("RGB").convert("CMYK"), "JPEG"),
    "rgb jpeg": encoded(PIXELS.convert("RGB"), "JPEG", keep_rgb=True),
    "fill bytes": encoded(PIXELS.convert("RGB"), "JPEG").replace(b"\xff\xc0", b"\xff\xff\xff\xc0", 1),
    "png": encoded(PIXELS, "PNG", pnginfo=with_texts(a="b" * 5000), dpi=(300, 300), **METADATA),
    "palette": encoded(PIXELS.convert("RGB").quantize(7), "PNG", transparency=3),
    "one bit": encoded(PIXELS.convert("1"), "PNG"),
    "interlaced": png(40, 24, colours=6, laced=True),
    "webp": encoded(PIXELS, "WEBP", xmp=b"<x/>", **METADATA),
    "lossless": encoded(PIXELS, "WEBP", lossless=True),
    "opaque": encoded(PIXELS.convert("RGB"), "WEBP"),
}


@pytest.mark.parametrize("name", FILES)
def test_leaves_the_pixels_as_pillow_reads_them(name):
    data = FILES[name]
    with Image.open(io.BytesIO(data)) as plain, opened(data) as found:
        assert (found.mode, found.size) == (plain.mode, plain.size) == (found.mode, check_image(data))
        assert found.has_transparency_data == plain.has_transparency_data
        assert (np.asarray(found.convert("RGBA")) == np.asarray(plain.convert("RGBA"))).all()


@pytest.mark.parametrize("name", ["jpeg", "png", "webp"])
def test_drops_metadata(name):
    with opened(FILES[name]) as found:
        found.load()
        left = {"icc_profile", "exif", "xmp", "comment", "a", "dpi"} & set(found.info)
    assert left <= {"dpi"}  # a JPEG header without it cannot be read
    assert len(essential(FILES[name]).data) < len(FILES[name]) - 70_000 or name == "png"


def test_keeps_only_the_orientation_of_a_photo():
    exif = Image.Exif()
    exif[0x010E], exif[0x0112] = "a description", 6
    for form in ("JPEG", "PNG", "WEBP"):
        data = encoded(PIXELS.convert("RGB"), form, exif=exif.tobytes())
        assert essential(data).orientation == 6
        with opened(data) as found:
            assert dict(found.getexif()) == {0x0112: 6}


@pytest.mark.parametrize(
    "exif",
    [
        struct.pack(">2sHIHHHIHH", b"MM", 42, 8, 1, 0x0112, 3, 1, 9, 0),
        struct.pack(">2sHIHHHIHH", b"MM", 42, 8, 1, 0x0112, 4, 1, 6, 0),
        struct.pack(">2sHIH", b"MM", 42, 2**32 - 1, 9),
        struct.pack(">2sHIH", b"MM", 42, 8, 65_535),
        b"II",
    ],
    ids=["no such number", "another type", "outside", "cut off", "short"],
)
def test_says_nothing_by_broken_exif_data(exif):
    assert essential(encoded(PIXELS, "WEBP", exif=b"Exif\0\0" + exif)).orientation == 1


def test_accepts_as_many_scans_as_cameras_write_and_not_more():
    assert check_image(progressive(160, 80, MOST_SCANS)) == (160, 80)
    assert check_image(progressive(4000, 4000, 32)) == (4000, 4000)
    for width, height, scans in ((160, 80, MOST_SCANS + 1), (4000, 4000, 33)):
        with pytest.raises(InvalidImageError):
            check_image(progressive(width, height, scans))


def test_rejects_unusually_many_chunks_of_pixels_only():
    pixels = zlib.compress(bytes(9 * 8), 0)
    chunks = [png(8, 8, pixels=pixels[at : at + 1])[33:46] for at in range(len(pixels))]
    assert check_image(png(8, 8, before=b"".join(chunks), pixels=b"")) == (8, 8)
    with pytest.raises(InvalidImageError):
        check_image(png(8, 8, before=b"".join(chunks) + png(8, 8, pixels=b" ")[33:46] * MOST_BLOCKS))


HARMLESS = (
    r"exif (entries|that)|profiles|resources|fill|escaped|200 pictures|5, inter|d, 4000|256 MiB|900 texts"
)
"""Files whose metadata or rest is left alone, and pixels that are few enough."""


def test_accepts_of_hostile_files_only_ones_with_ordinary_pixels():
    accepted = []
    for name, data in files():
        with contextlib.suppress(InvalidImageError):
            check_image(data)
            accepted.append(name)
    assert accepted == [name for name, _ in files() if re.search(HARMLESS, name)]


def test_opens_files_by_pillow_in_one_place_only():
    found = [
        path.relative_to(ROOT).as_posix()
        for top in ("tinkergym", "backend", "envs", "examples")
        for path in (ROOT / top).rglob("*.py")
        if "tests" not in path.parts and re.search(r"(Image|pillow)\.open\(", path.read_text())
    ]
    assert found == ["tinkergym/images/stored_images.py"]
