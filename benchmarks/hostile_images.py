"""Image files made to occupy whoever decodes them, or to be taken for another; for tests and benchmarks.

Each is at most 4 MiB, the most that a service accepts. Most are built by hand: no encoder writes them.
"""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

MOST_BYTES = 4 << 20
_PNG = b"\x89PNG\r\n\x1a\n"
_SIDE = 4000
"""4000 x 4000 pixels are the most that a service accepts."""


@functools.cache
def files() -> list[tuple[str, bytes]]:
    """Return 60 files with their names; no two are equal."""
    found = [*_jpegs(), *_pngs(), *_webps(), *_others()]
    assert len(found) == len({data for _, data in found}) == 60, len(found)
    assert all(len(data) <= MOST_BYTES for _, data in found)
    return found


def progressive(width: int, height: int, scans: int) -> bytes:
    """Return a valid progressive JPEG file whose scans have few bytes each."""
    out = [b"\xff\xd8", _segment(0xDB, b"\0" + b"\1" * 64)]
    out.append(_segment(0xC2, struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0"))
    # One code for a coefficient of zero, and one for the end of 16384 to 32767 blocks.
    out.append(_segment(0xC4, b"\0" + bytes([1] + [0] * 15) + b"\0"))
    out.append(_segment(0xC4, b"\x10" + bytes([1, 1] + [0] * 14) + b"\xe0\0"))
    blocks = -(-width // 8) * -(-height // 8)
    out.append(_scan(0, 0, "0" * blocks))
    runs = "".join("0" + format(min(left, 32767) - 16384, "014b") for left in _runs(blocks))
    out.extend([_scan(1, 63, runs)] * (scans - 1))
    return b"".join([*out, b"\xff\xd9"])


def png(
    width: int, height: int, *, depth: int = 8, colours: int = 0, laced: bool = False, **own: Any
) -> bytes:
    """Return a PNG file.

    Args:
        width: As the header says.
        height: As the header says.
        depth: Bits per channel.
        colours: PNG's colour type.
        laced: Whether the header says that it is interlaced.
        own: `before` and `after`: chunks around the pixels; `pixels`: their compressed bytes, by default
            zeros for the whole image.
    """
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colours]
    rows = 2 * height if laced else height
    zeros = rows + -(-width * height * channels * depth // 8) + rows
    pixels = own["pixels"] if "pixels" in own else zlib.compress(bytes(zeros), 1)
    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, laced)
    palette = _chunk(b"PLTE", bytes(range(3))) if colours == 3 else b""
    return b"".join(
        [
            _PNG,
            _chunk(b"IHDR", header),
            palette,
            own.get("before", b""),
            *(_chunk(b"IDAT", pixels[at : at + 2**20]) for at in range(0, len(pixels), 2**20)),
            own.get("after", b""),
            _chunk(b"IEND", b""),
        ]
    )


def _runs(blocks: int) -> Iterator[int]:
    while blocks > 0:
        yield max(min(blocks, 32767), 16384)
        blocks -= 32767


def _segment(marker: int, body: bytes) -> bytes:
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(body) + 2) + body


def _scan(first: int, last: int, bits: str) -> bytes:
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    return _segment(0xDA, b"\1\1\0" + bytes([first, last, 0])) + data


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _saved(picture: Any, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def _exif(entries: int, size: int, *, loop: bool = False) -> bytes:
    """Return EXIF data whose entries all claim the same bytes."""
    table = b"".join(struct.pack(">HHII", tag, 7, size, 8) for tag in range(1, entries + 1))
    if loop:
        table = struct.pack(">HHII", 0x8769, 4, 1, 8)
        entries = 1
    head = b"MM\0*\0\0\0\x08" + struct.pack(">H", entries) + table
    return head + bytes(max(0, size + 8 - len(head)))


def _in_jpeg(jpeg: bytes, *segments: bytes) -> bytes:
    return b"".join([jpeg[:2], *segments, jpeg[2:]])


def _jpegs() -> Iterator[tuple[str, bytes]]:
    small = _saved(Image.new("RGB", (8, 8), "red"), "JPEG")
    for scans in (65, 1000, 4000, 20_000, 100_000):
        yield f"jpeg of {scans} scans", progressive(_SIDE, _SIDE, scans)
    yield "jpeg of 60 scans of all pixels", progressive(_SIDE, _SIDE, 60)
    yield "jpeg of 130000 scans of one block", progressive(8, 8, 130_000)
    yield "jpeg 65535 x 244 of 4000 scans", progressive(65_535, 244, 4000)
    yield "jpeg 65535 x 65535", progressive(65_535, 65_535, 1)[:4000]
    exif = b"Exif\0\0"
    yield "jpeg of 5000 exif entries of 60 KB", _in_jpeg(small, _segment(0xE1, exif + _exif(4900, 60_000)))
    yield "jpeg of exif that loops", _in_jpeg(small, _segment(0xE1, exif + _exif(1, 8, loop=True)))
    yield "jpeg of 250000 exif segments", _in_jpeg(small, *[_segment(0xE1, exif + b"MM")] * 250_000)
    yield "jpeg of 900000 comments", _in_jpeg(small, *[_segment(0xFE, b"")] * 900_000)
    yield "jpeg of 60 profiles", _in_jpeg(small, *[_segment(0xE2, b"ICC_PROFILE\0" + bytes(60_000))] * 60)
    resources = b"Photoshop 3.0\0" + b"8BIM\4\4\0\0\0\0\0\0" * 5000
    yield "jpeg of 60 x 5000 resources", _in_jpeg(small, *[_segment(0xED, resources)] * 60)
    yield "jpeg of 4 MiB of fill bytes", small[:2] + b"\xff" * (MOST_BYTES - len(small)) + small[2:]
    yield "jpeg of 4 MiB of zeros between segments", small[:2] + bytes(MOST_BYTES - len(small)) + small[2:]
    yield (
        "jpeg of 4 MiB of escaped bytes",
        small[:-2] + b"\xff\0" * (MOST_BYTES // 2 - len(small)) + small[-2:],
    )
    yield "jpeg of 60000 tables", _in_jpeg(small, *[_segment(0xDB, b"\0" + b"\1" * 64)] * 60_000)
    yield (
        "jpeg of two frames",
        _in_jpeg(small, _segment(0xC0, struct.pack(">BHHB", 8, 9, 9, 1) + b"\1\x11\0")),
    )
    arithmetic = bytearray(progressive(_SIDE, _SIDE, 10))
    arithmetic[arithmetic.index(b"\xff\xc2") + 1] = 0xCA
    yield "jpeg with arithmetic coding", bytes(arithmetic)
    yield (
        "jpeg of 200 pictures",
        _saved(
            Image.new("RGB", (8, 8)), "MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))] * 200
        ),
    )
    yield "jpeg cut off", progressive(_SIDE, _SIDE, 4000)[:100_000]


def _pngs() -> Iterator[tuple[str, bytes]]:
    yield "png 16000000 x 1", png(16_000_000, 1)
    yield "png 1 x 16000000", png(1, 16_000_000)
    yield "png 1 x 16000000 of 1 bit, interlaced", png(1, 16_000_000, depth=1, laced=True)
    yield "png 4001 x 4000", png(4001, _SIDE)
    yield "png 2147483647 x 2147483647", png(2**31 - 1, 2**31 - 1, pixels=b"")
    yield "png interlaced, 4000 x 4000", png(_SIDE, _SIDE, colours=6, laced=True)
    yield "png 61 x 65535, interlaced", png(61, 65_535, colours=2, laced=True)
    bomb = zlib.compress(bytes(2**28), 1)
    yield "png of 8 x 8 with 256 MiB of pixels", png(8, 8, pixels=bomb)
    yield "png of a 256 MiB text", png(8, 8, before=_chunk(b"zTXt", b"a\0\0" + bomb))
    yield "png of a 256 MiB profile", png(8, 8, before=_chunk(b"iCCP", b"a\0\0" + bomb))
    text = zlib.compress(b"a" * 900_000, 1)
    texts = b"".join(_chunk(b"iTXt", b"k%d\0\1\0\0\0" % number + text) for number in range(900))
    yield "png of 900 texts", png(8, 8, before=texts)
    yield "png of 900 texts after its pixels", png(8, 8, after=texts)
    profiles = _chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(2**20), 9)) * 900
    yield "png of 900 profiles", png(8, 8, before=profiles)
    yield "png of 300000 chunks", png(8, 8, before=_chunk(b"teXt", b"") * 300_000)
    yield "png of 300000 empty chunks of pixels", png(8, 8, before=_chunk(b"IDAT", b"") * 300_000)
    yield "png of 65000 exif entries of 3 MB", png(8, 8, before=_chunk(b"eXIf", _exif(65_000, 3_000_000)))
    yield (
        "png of two headers",
        png(8, 8, before=_chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))),
    )
    yield "png of 2147483647 frames", png(8, 8, before=_chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)))
    yield (
        "png of two frames",
        _saved(Image.new("L", (8, 8)), "PNG", save_all=True, append_images=[Image.new("L", (8, 8), 9)]),
    )
    yield "png with a chunk of 2 GiB", _PNG + png(8, 8)[8:33] + struct.pack(">I", 2**31 - 1) + b"IDAT"
    yield "png cut off", png(_SIDE, _SIDE)[:-40]


def _webps() -> Iterator[tuple[str, bytes]]:
    small, other = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    frames = [small, other] * 300
    yield "webp of 600 frames", _saved(small, "WEBP", save_all=True, append_images=frames)
    lossless = _saved(small, "WEBP", lossless=True)
    lossy = _saved(small, "WEBP")
    canvas = struct.pack("<I", 0) + b"\xff\xff\xff" * 2
    yield "webp with a canvas of 16777216 x 16777216", _riff(b"VP8X", canvas, lossy[12:])
    yield "webp of 500000 chunks", _riff(b"VP8X", bytes(4) + b"\7\0\0" * 2, (b"JUNK" + bytes(4)) * 500_000)
    yield (
        "webp of 65000 exif entries of 3 MB",
        _riff(
            b"VP8X",
            b"\x08\0\0\0" + b"\7\0\0" * 2,
            lossy[12:] + _webp_chunk(b"EXIF", _exif(65_000, 3_000_000)),
        ),
    )
    wide = bytearray(lossless)
    wide[21:25] = struct.pack("<I", (1 << 28) - 1)
    yield "webp that says 16384 x 16384", bytes(wide)
    yield "webp cut off", lossless[:-6]
    noise = np.random.default_rng(0).integers(0, 2, (250, 250, 3), np.uint8) * 255
    yield "webp of noise, without its end", _saved(Image.fromarray(noise), "WEBP", lossless=True)[:-900]


def _riff(kind: bytes, body: bytes, rest: bytes) -> bytes:
    blocks = b"WEBP" + _webp_chunk(kind, body) + rest
    return b"RIFF" + struct.pack("<I", len(blocks)) + blocks


def _webp_chunk(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("<I", len(body)) + body + bytes(len(body) % 2)


def _others() -> Iterator[tuple[str, bytes]]:
    small = Image.new("RGB", (8, 8), "red")
    for form in ("GIF", "TIFF", "BMP", "ICO"):
        yield form.lower(), _saved(small, form)
    yield "svg", b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>"
    yield "eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    yield "pdf", b"%PDF-1.4"
    yield "empty", b""
    yield "16 bits per channel", _saved(Image.fromarray(np.full((8, 8), 40_000, np.uint16)), "PNG")
