"""PNG, JPEG and WebP files, reduced to what their pixels need, with the work of decoding them bounded.

Reads only the structure of a file, with neither Pillow nor a pixel decoded. Metadata (text, profiles,
thumbnails, further pictures) never reach Pillow, whose readers for them take far more time and memory than
such a block has bytes.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from tinkergym.errors import InvalidImageError

FORMATS_IN_WORDS = "PNG, JPEG or WebP"
MOST_SIDE = 65_535
"""In pixels, the limit of JPEG: decoders do some work per row."""
MOST_BLOCKS = 4096
"""Chunks of a PNG or WebP file, or segments of a JPEG file."""
MOST_SCANS = 64
"""Of a JPEG file. Progressive files have about 10."""
MOST_SCANNED = 512_000_000
"""Pixels times the components of all scans of a JPEG file: 14 for a usual progressive file in colour."""

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_PNG_KEPT = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_EOI, _DHT, _SOS, _DQT, _DRI, _APP0, _APP1, _APP14 = 0xD9, 0xC4, 0xDA, 0xDB, 0xDD, 0xE0, 0xE1, 0xEE
_JPEG_KEPT = {_DHT, _DQT, _DRI}
_STANDALONE = {0x01, *range(0xD0, 0xD9)}
_FRAMES = {0xC0, 0xC1, 0xC2}
_OTHER_FRAMES = {*range(0xC3, 0xD0)} - {_DHT, 0xC8, 0xCC}
_WEBP_ANIMATED, _WEBP_ALPHA = 0x02, 0x10
_EXIF_BYTES = 65_535
_EXIF_ENTRIES = 1000
_ORIENTATION = 0x0112


@dataclass(frozen=True, slots=True)
class Essential:
    """What is needed of a file to decode its pixels."""

    format: str
    """As Pillow names it."""
    data: bytes
    width: int
    height: int
    """As its header says, in pixels."""
    orientation: int
    """How a camera was held, 1 to 8 as EXIF numbers it; 1 is upright."""


def essential(data: bytes | bytearray | memoryview) -> Essential:
    """Return an image file without what its pixels do not need.

    The pictures after the first of a JPEG file (MPO, gain maps) are left out, as other viewers do.

    Raises:
        InvalidImageError: It is not a PNG, JPEG or WebP file, is animated, or would take unreasonably long
            to decode.
    """
    data = bytes(data)
    if data.startswith(_PNG):
        found = _png(data)
    elif data.startswith(_JPEG):
        found = _jpeg(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        found = _webp(data)
    else:
        raise broken("its first bytes are of no such file")
    if max(found.width, found.height) > MOST_SIDE:
        raise InvalidImageError(
            f"an image is {found.width} x {found.height} pixels, more than {MOST_SIDE} on one side",
            hint="make it smaller",
        )
    return found


def broken(reason: object) -> InvalidImageError:
    """Return the error for a file that cannot be read."""
    return InvalidImageError(
        f"this is not a readable {FORMATS_IN_WORDS} file: {reason}",
        hint="convert it to one of these formats, and send the whole file, unchanged",
    )


def _png(data: bytes) -> Essential:
    kept, exif, header = [_PNG], b"", b""
    place = len(_PNG)
    for count in range(MOST_BLOCKS + 1):
        if len(data) - place < 12:
            break
        _refuse_many(count, "chunks")
        length, kind = struct.unpack_from(">I4s", data, place)
        block, place = data[place : place + 12 + length], place + 12 + length
        if kind == b"IHDR":
            # Pillow would take the size from the last one.
            if header or length != 13:
                raise broken("it must have one header (IHDR) of 13 bytes")
            header = block
        elif kind == b"acTL":
            _refuse_animation(int.from_bytes(block[8:12], "big"))
        elif kind == b"eXIf" and not exif:
            exif = block[8 : 8 + _EXIF_BYTES]
        if kind in _PNG_KEPT:
            kept.append(block)
        if kind == b"IEND":
            break
    if not header:
        raise broken("it has no header (IHDR)")
    width, height = struct.unpack_from(">II", header, 8)
    return Essential("PNG", b"".join(kept), width, height, _orientation(exif))


def _jpeg(data: bytes) -> Essential:
    kept, exif, frame = [data[:2]], b"", b""
    place = 2
    scans = scanned = 0
    for count in range(MOST_BLOCKS + 1):
        found = _MARKER.search(data, place)
        if found is None:
            break
        _refuse_many(count, "segments")
        begin, code = found.start(), data[found.end() - 1]
        if code == _EOI:
            kept.append(data[begin : begin + 2])
            break
        place = found.end()
        if code in _STANDALONE:
            continue
        place += int.from_bytes(data[place : place + 2], "big")
        body = data[begin + 4 : place]
        if place < begin + 4 or place > len(data):
            raise broken(f"the segment at byte {begin} is cut off")
        if code in _FRAMES:
            if frame or len(body) < 6:
                raise broken("it must have one frame header")
            frame = body
        elif code in _OTHER_FRAMES:
            raise InvalidImageError(
                "a JPEG file is lossless, hierarchical or arithmetically coded",
                hint="convert it to a usual JPEG file",
            )
        elif code == _APP1 and body.startswith(b"Exif\0\0") and not exif:
            exif = body
        if code == _SOS:
            after = _AFTER_SCAN.search(data, place)
            place = len(data) if after is None else after.start()
            scans, scanned = scans + 1, scanned + (body[0] if body else 0)
            _refuse_scans(scans, scanned, frame)
        if code in _JPEG_KEPT or code in _FRAMES or code == _SOS or _is_about_colours(code, body):
            kept.append(data[begin:place])
    if not frame:
        raise broken("it has no frame header")
    height, width = struct.unpack_from(">HH", frame, 1)
    return Essential("JPEG", b"".join(kept), width, height, _orientation(exif))


def _is_about_colours(code: int, body: bytes) -> bool:
    return (code == _APP0 and body.startswith(b"JFIF")) or (code == _APP14 and body.startswith(b"Adobe"))


def _refuse_scans(scans: int, components: int, frame: bytes) -> None:
    if not frame:
        raise broken("a scan precedes the frame header")
    height, width = struct.unpack_from(">HH", frame, 1)
    # A single scan of too many pixels is refused for these.
    if scans > MOST_SCANS or (scans > 1 and components * width * height > MOST_SCANNED):
        raise InvalidImageError(
            f"a JPEG file of {width} x {height} pixels has at least {scans} scans, which take too long to "
            f"decode",
            hint="save it again as a JPEG file that is not progressive",
        )


def _webp(data: bytes) -> Essential:
    kept: dict[bytes, bytes] = {}
    exif, place = b"", 12
    end = min(len(data), 8 + int.from_bytes(data[4:8], "little"))
    for count in range(MOST_BLOCKS + 1):
        if end - place < 8:
            break
        _refuse_many(count, "chunks")
        kind, length = struct.unpack_from("<4sI", data, place)
        block, place = data[place : place + 8 + length + length % 2], place + 8 + length + length % 2
        if kind == b"VP8X" and length >= 10:
            if block[8] & _WEBP_ANIMATED:
                _refuse_animation(0)
            block = block[:8] + bytes([block[8] & _WEBP_ALPHA]) + block[9:]
        elif kind == b"EXIF" and not exif:
            exif = block[8 : 8 + _EXIF_BYTES]
        if kind in {b"VP8X", b"ALPH", b"VP8 ", b"VP8L"}:
            kept.setdefault(kind, block)
    width, height = _webp_size(kept)
    blocks = b"WEBP" + b"".join(kept.values())
    return Essential(
        "WEBP", b"RIFF" + struct.pack("<I", len(blocks)) + blocks, width, height, _orientation(exif)
    )


def _webp_size(kept: dict[bytes, bytes]) -> tuple[int, int]:
    """Return the larger of the sizes of the canvas and of its picture, which must agree."""
    sizes = [(0, 0)]
    if len(canvas := kept.get(b"VP8X", b"")) >= 18:
        sizes.append(
            (int.from_bytes(canvas[12:15], "little") + 1, int.from_bytes(canvas[15:18], "little") + 1)
        )
    if len(lossy := kept.get(b"VP8 ", b"")) >= 18:
        width, height = struct.unpack_from("<HH", lossy, 14)
        sizes.append((width & 0x3FFF, height & 0x3FFF))
    if len(lossless := kept.get(b"VP8L", b"")) >= 13:
        bits = int.from_bytes(lossless[9:13], "little")
        sizes.append(((bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1))
    return max(sizes, key=lambda size: size[0] * size[1])


def _orientation(exif: bytes) -> int:
    """Return the orientation in EXIF data, 1 if they are broken or do not say it."""
    exif = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    try:
        (begin,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, begin)
        for number in range(min(count, _EXIF_ENTRIES)):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", exif, begin + 2 + 12 * number)
            if tag == _ORIENTATION:
                return value if kind == 3 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def _refuse_many(count: int, blocks: str) -> None:
    if count == MOST_BLOCKS:
        raise InvalidImageError(
            f"an image file has more than {MOST_BLOCKS} {blocks}", hint="save it again with another program"
        )


def _refuse_animation(frames: int) -> None:
    if frames != 1:
        raise InvalidImageError(
            "an image holds several pictures, such as an animation", hint="show one of them as an image"
        )
