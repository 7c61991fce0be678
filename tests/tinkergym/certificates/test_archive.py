"""Hostile archives: only plain files with unique names are read, and a bounded number of bytes."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import resource
import tarfile
import tempfile
from pathlib import Path

import pytest

from benchmarks.forgery import member, packed, unpacked, with_members
from tests.tinkergym.certificates.made_run import Run
from tinkergym.certificates import verify
from tinkergym.certificates.archive import ReadLimits, reading_bundle
from tinkergym.errors import InvalidRequestError


@pytest.fixture
def bundle(tmp_path):
    return Run().bundle(tmp_path)


def with_more(bundle, folder, *members, first=False):
    """Pack a bundle again, with more members before or after its own."""
    own = [member(name, body) for name, body in unpacked(bundle).items()]
    return with_members([*members, *own] if first else [*own, *members], folder / "other.tar")


LINK = {"linkname": "/etc/passwd"}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("link", {"type": tarfile.SYMTYPE, **LINK}),
        ("hard", {"type": tarfile.LNKTYPE, **LINK}),
        ("hard", {"type": tarfile.LNKTYPE, "linkname": "events.jsonl"}),
        ("device", {"type": tarfile.CHRTYPE}),
        ("disk", {"type": tarfile.BLKTYPE}),
        ("fifo", {"type": tarfile.FIFOTYPE}),
        ("folder", {"type": tarfile.DIRTYPE}),
        ("sparse", {"type": tarfile.GNUTYPE_SPARSE}),
        ("contiguous", {"type": tarfile.CONTTYPE}),
        ("events.jsonl", {}),
        ("certificate.json", {}),
        ("setuid", {"mode": 0o4755}),
        ("setgid", {"mode": 0o2755}),
        ("sticky", {"mode": 0o1755}),
        ("/etc/evil", {}),
        ("../evil", {}),
        ("a/../../evil", {}),
        ("./events.jsonl", {}),
        ("a//b", {}),
        ("new\nline", {}),
        ("latin\udce9", {}),
        ("a" * 1001, {}),
    ],
)
def test_refuses_what_is_not_a_plain_file(bundle, tmp_path, name, fields, first):
    with pytest.raises(InvalidRequestError):
        verify(with_more(bundle, tmp_path, member(name, **fields), first=first))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "headers",
    [
        {"path": "../evil"},
        {"path": "events.jsonl"},
        {"linkpath": "/etc/passwd"},
        {"hdrcharset": "BINARY"},
        {"mtime": "inf"},
        {"size": "-512"},
        {"GNU.sparse.map": "0,x", "GNU.sparse.size": "1"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"},
    ],
)
def test_refuses_extended_headers_that_others_read_differently(bundle, tmp_path, headers, first):
    with pytest.raises(InvalidRequestError):
        verify(with_more(bundle, tmp_path, member("other", b"{}" * 300, pax_headers=headers), first=first))


@pytest.mark.parametrize(
    ("field", "value"), [("size", -1), ("name", "latin\udce9"), ("type", tarfile.AREGTYPE)]
)
def test_refuses_headers_that_no_writer_of_ours_makes(bundle, tmp_path, field, value):
    entry = tarfile.TarInfo("other")
    setattr(entry, field, value)
    path = tmp_path / "other.tar"
    path.write_bytes(entry.tobuf(tarfile.GNU_FORMAT) + bundle.read_bytes())
    with pytest.raises(InvalidRequestError), reading_bundle(path):
        pass


def test_reads_names_longer_than_a_header(bundle, tmp_path):
    name = "checkpoints/" + "a" * 120 + "/é"
    with reading_bundle(with_more(bundle, tmp_path, member(name, b"x"))) as files:
        assert files.body(name) == b"x"


@pytest.mark.parametrize("name", ["certificate.json", "events.jsonl"])
def test_refuses_links_in_place_of_its_files(bundle, tmp_path, name):
    files = unpacked(bundle) | {name: b""}
    members = [
        member(own, body, **({"type": tarfile.SYMTYPE, **LINK} if own == name else {}))
        for own, body in files.items()
    ]
    with pytest.raises(InvalidRequestError):
        verify(with_members(members, tmp_path / "other.tar"))


def test_reads_what_gzip_compressed(bundle, tmp_path):
    target = tmp_path / "run.tar.gz"
    target.write_bytes(gzip.compress(bundle.read_bytes()))
    assert verify(target).problems == []


@pytest.mark.parametrize("compressed", [False, True])
def test_refuses_bytes_after_the_archive(bundle, tmp_path, compressed):
    body = bundle.read_bytes()
    for whole in (
        [gzip.compress(body) + b"A", gzip.compress(body + b"A" * 512), gzip.compress(body) * 2]
        if compressed
        else [body + b"A", body + b"\0" * 10240 + b"A", body + body]
    ):
        target = tmp_path / "other"
        target.write_bytes(whole)
        with pytest.raises(InvalidRequestError):
            verify(target)


@pytest.mark.parametrize("cut", [1, 600, 5000])
@pytest.mark.parametrize("compressed", [False, True])
def test_refuses_a_cut_archive(bundle, tmp_path, cut, compressed):
    body = bundle.read_bytes().rstrip(b"\0")
    target = tmp_path / "other"
    target.write_bytes(gzip.compress(body)[:-cut] if compressed else body[:-cut])
    with pytest.raises(InvalidRequestError):
        verify(target)


@pytest.mark.parametrize(
    "text",
    [
        '{"sha256": "f", %s',
        '{"facts": 1, %s',
        "%s",
    ],
)
def test_refuses_json_with_a_name_twice(bundle, tmp_path, text):
    files = unpacked(bundle)
    body = files["certificate.json"].decode()
    if text == "%s":
        body = body.replace('"state":', '"state": "failed", "state":', 1)
    else:
        body = text % body.lstrip("{")
    for path in (tmp_path / "certificate.json", tmp_path / "other.tar"):
        if path.suffix == ".tar":
            packed(files | {"certificate.json": body.encode()}, path)
        else:
            path.write_text(body)
        with pytest.raises(InvalidRequestError):
            verify(path)


def broken_gzip(bundle):
    body = bytearray(gzip.compress(bundle, mtime=0))
    body[len(body) // 2] ^= 0xFF
    return bytes(body)


@pytest.mark.parametrize(
    "made",
    [
        lambda bundle: b"",
        lambda bundle: b"{",
        lambda bundle: b"{}",
        lambda bundle: b"[" * 100_000,
        lambda bundle: b"{" * 100_000,
        lambda bundle: b'{"facts":' + b"9" * 1_000_000 + b"}",
        lambda bundle: gzip.compress(bundle)[:-20],
        broken_gzip,
        bz2.compress,
        lzma.compress,
    ],
    ids=["empty", "cut", "fields", "list", "deep", "digits", "cut_gzip", "broken_gzip", "bzip2", "xz"],
)
def test_names_what_is_not_a_certificate(bundle, tmp_path, made):
    path = tmp_path / "given"
    path.write_bytes(made(bundle.read_bytes()))
    with pytest.raises(InvalidRequestError):
        verify(path)


@pytest.mark.parametrize("name", ["certificate.json", "other.json"])
def test_refuses_an_archive_without_a_certificate(tmp_path, name):
    with pytest.raises(InvalidRequestError):
        verify(packed({name: b"[]"}, tmp_path / "other.tar"))


def test_refuses_pipes_and_devices(tmp_path):
    with pytest.raises(InvalidRequestError):
        verify("/dev/zero")


SMALL = ReadLimits(most_bytes=2**16, most_growth=2, chunk_bytes=2**14)
"""At most 64 KiB, so that bombs of a megabyte are refused."""


def header_bomb(kind):
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = kind, 2**20
    return entry.tobuf(tarfile.USTAR_FORMAT) + b"a" * 2**20


def packed_bytes(files):
    with tempfile.NamedTemporaryFile() as whole:
        return packed(files, Path(whole.name)).read_bytes()


BOMBS = {
    "certificate": lambda bundle: packed_bytes({"certificate.json": b"{" + b" " * 2**20}),
    "events": lambda bundle: packed_bytes(unpacked(bundle) | {"x.jsonl": b"\n" * 2**20}),
    "pax": lambda bundle: header_bomb(tarfile.XHDTYPE),
    "global": lambda bundle: header_bomb(tarfile.XGLTYPE),
    "long_name": lambda bundle: header_bomb(tarfile.GNUTYPE_LONGNAME),
    "files": lambda bundle: packed_bytes({f"f{n}": b"" for n in range(2000)}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_refuses_compressed_bombs(bundle, tmp_path, name):
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(gzip.compress(BOMBS[name](bundle)))
    with pytest.raises(InvalidRequestError):
        verify(path, limits=SMALL)


@pytest.mark.parametrize("name", ["certificate", "pax", "global", "long_name"])
def test_refuses_large_headers_and_documents(bundle, tmp_path, name):
    path = tmp_path / "bomb.tar"
    path.write_bytes(BOMBS[name](bundle))
    with pytest.raises(InvalidRequestError):
        verify(path, limits=SMALL)
    alone = tmp_path / "bomb.json"
    alone.write_bytes(b"{" + b" " * 2**20)
    with pytest.raises(InvalidRequestError):
        verify(alone, limits=SMALL)


def test_refuses_more_files_than_a_run_has(tmp_path):
    path = packed({f"f{n}": b"" for n in range(11)}, tmp_path / "many.tar")
    with pytest.raises(InvalidRequestError), reading_bundle(path, ReadLimits(most_files=10)):
        pass


def test_refuses_a_line_without_an_end(tmp_path):
    path = packed({"events.jsonl": b"x" * 2**17}, tmp_path / "line.tar")
    with reading_bundle(path, SMALL) as files, pytest.raises(InvalidRequestError):
        list(files.lines("events.jsonl"))
    path = packed({"events.jsonl": b"a\nb"}, tmp_path / "line.tar")
    with reading_bundle(path, SMALL) as files, pytest.raises(InvalidRequestError):
        list(files.lines("events.jsonl"))


@pytest.mark.parametrize("size", [0, 1, 2**14 - 1, 2**14, 3 * 2**14 + 5])
def test_reads_lines_across_chunks(tmp_path, size):
    lines = [b"a" * (size % 1000) + b"%d" % n for n in range(size // 500)]
    path = packed({"lines": b"".join(line + b"\n" for line in lines)}, tmp_path / "lines.tar")
    with reading_bundle(path, SMALL) as files:
        assert list(files.lines("lines")) == lines


def test_refuses_more_objects_than_a_run_has(bundle, tmp_path):
    path = tmp_path / "certificate.json"
    path.write_bytes(unpacked(bundle)["certificate.json"])
    with pytest.raises(InvalidRequestError):
        verify(path, limits=ReadLimits(most_objects=10))


def test_reads_many_wrong_facts_in_little_memory(bundle, tmp_path):
    body = unpacked(bundle)["certificate.json"].decode()
    wrong = "[" + ",".join(["{}"] * 140_000) + "]"
    path = tmp_path / "wrong.json"
    path.write_text(body.replace('"not_learned": []', f'"not_learned": {wrong}', 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidRequestError):
        verify(path, limits=SMALL)
    # One error for each of them would take hundreds of megabytes.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_refuses_a_certificate_of_more_steps_than_it_can_record(bundle, tmp_path):
    files = unpacked(bundle)
    document = json.loads(files["certificate.json"])
    document["facts"]["job"]["step"] = 10**10  # Looking for each of them would take hours.
    files["certificate.json"] = json.dumps(document).encode()
    with pytest.raises(InvalidRequestError):
        verify(packed(files, tmp_path / "other.tar"))
