"""Bundles come from anybody: whatever is in one, `verify` says what is wrong with it."""

import gzip
import io
import tarfile

import pytest

from tinkergym.certificates import verify
from tinkergym.errors import InvalidDataError


def packed(name, body, *, sparse=False):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(body)
        if sparse:
            entry.type = tarfile.GNUTYPE_SPARSE
        archive.addfile(entry, io.BytesIO(body))
    return file.getvalue()


def broken_gzip():
    body = bytearray(gzip.compress(packed("certificate.json", bytes(range(256)) * 200), mtime=0))
    body[len(body) // 2] ^= 0xFF
    return bytes(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{}",
        b"[" * 100_000,
        packed("certificate.json", b"[]"),
        packed("certificate.json", b"{}", sparse=True),
        packed("../certificate.json", b"{}"),
        gzip.compress(packed("certificate.json", b"{}"), mtime=0)[:-20],
        broken_gzip(),
    ],
    ids=[
        "empty",
        "cut",
        "no_fields",
        "deep",
        "no_object",
        "sparse",
        "outside",
        "cut_gzip",
        "broken_gzip",
    ],
)
def test_what_is_no_certificate_is_named(tmp_path, body):
    path = tmp_path / "given"
    path.write_bytes(body)
    with pytest.raises(InvalidDataError):
        verify(path)
