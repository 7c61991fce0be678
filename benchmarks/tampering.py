"""What `verify` detects of a real run's bundle: single changed fields, tricks of archives, and bombs."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import tinkergym as tg
from benchmarks.common import Figure, service, write_result
from benchmarks.forgery import (
    certificate_of,
    detects,
    is_listed,
    member,
    one_field_changes,
    packed,
    unpacked,
    with_members,
)
from tinkergym.certificates import verify
from tinkergym.errors import TinkerGymError

ENVIRONMENT = "board/TicTacToeVs-v0"
BOMB_BYTES = 512 * 2**20
MOST_MEMORY = 400
"""MiB that a child may use for a bomb; about 70 of them are Python and its imports."""

_CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from tinkergym.certificates import verify
from tinkergym.errors import TinkerGymError
try:
    said = "passed" if verify(sys.argv[1]).ok else "problem"
except TinkerGymError:
    said = "refused"
print(said, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def measure() -> list[Figure]:
    """Certify a run of two steps, and forge its bundle."""
    with tempfile.TemporaryDirectory(prefix="tinkergym-bench-") as scratch:
        folder = Path(scratch)
        bundle, key = _bundle(folder)
        if not verify(bundle, key=key).ok:
            raise RuntimeError(f"the bundle itself is not in order:\n{verify(bundle, key=key)}")
        files = unpacked(bundle)
        fields, signed, unsigned = 0, list[str](), list[str]()
        unlisted = list[str]()
        for field, certificate in one_field_changes(certificate_of(files)):
            fields += 1
            name = ".".join(map(str, field))
            if not detects(files, certificate, folder / "forged.tar", key):
                signed.append(name)
            if not detects(files, certificate, folder / "forged.tar"):
                unsigned.append(name)
                unlisted += [] if is_listed(field) else [name]
        tricks = {name: _refused(make(folder, files)) for name, make in TRICKS.items()}
        bombs = {name: _in_a_child(make(folder, files)) for name, make in BOMBS.items()}
    memory = max(int(said.split()[1]) for said in bombs.values())
    refused = sum("refused" in said for said in bombs.values())
    figures = [
        Figure(
            what="one changed field of the facts, sealed again: with the operator's key",
            asked="all detected",
            measured=f"{fields - len(signed)} of {fields} detected",
            reached=not signed,
        ),
        Figure(
            what="the same in an unsigned bundle",
            asked="all but listed ones",
            measured=f"{fields - len(unsigned)} of {fields} detected, {len(unsigned)} listed",
            reached=not unlisted,
        ),
        Figure(
            what="archives with links, devices, doubled or hidden members",
            asked="all detected",
            measured=f"{sum(tricks.values())} of {len(tricks)} detected",
            reached=all(tricks.values()),
        ),
        Figure(
            what=f"bombs of up to {BOMB_BYTES // 2**20} MiB",
            asked=f"all refused, <= {MOST_MEMORY} MiB",
            measured=f"{refused} of {len(bombs)} refused, {memory} MiB",
            reached=memory <= MOST_MEMORY and refused == len(bombs),
            margin=MOST_MEMORY / memory,
        ),
    ]
    details = {
        "undetected_when_signed": signed,
        "undetected_when_unsigned": unsigned,
        "not_listed": unlisted,
        "tricks": tricks,
        "bombs": bombs,
    }
    return write_result("tampering", figures, details)


def _bundle(folder: Path) -> tuple[Path, str]:
    """Train for two steps; return the bundle and the operator's key."""
    with service(None, 'preload=["nano"]') as running, tg.Client(running.url, running.api_key) as client:
        job = client.train(
            ENVIRONMENT,
            env_kwargs={"on_illegal": "random"},
            steps=2,
            checkpoint_every=1,
            algorithm=tg.GRPO(group_size=2, groups_per_step=2),
            sampling=tg.Sampling(max_turn_tokens=4, temperature=3.0),
        )
        job.wait(progress=False, warn=False)
        written = job.certificate(folder, bundle=True)
        assert written.bundle is not None
        return written.bundle, client.health().operator_key


def _refused(path: Path) -> bool:
    try:
        return not verify(path).ok
    except TinkerGymError:
        return True


def _in_a_child(path: Path) -> str:
    """Return what becomes of a hostile file in a process with 2 GiB, and the memory it used in MiB."""
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    path.unlink()
    return child.stdout.strip() or f"crashed 0 {child.stderr.strip()[-200:]}"


Make = Callable[[Path, Mapping[str, bytes]], Path]


def _plus(name: str, body: bytes = b"", *, first: bool = False, **fields: object) -> Make:
    """Return a maker of a bundle with one more member."""

    def make(folder: Path, files: Mapping[str, bytes]) -> Path:
        own = [member(known, content) for known, content in files.items()]
        more = [member(name, body, **fields)]
        return with_members([*more, *own] if first else [*own, *more], folder / "trick.tar")

    return make


def _followed(folder: Path, files: Mapping[str, bytes]) -> Path:
    path = packed(files, folder / "trick.tar")
    with path.open("ab") as file:
        file.write(b"A" * 100_000)
    return path


def _linked(folder: Path, files: Mapping[str, bytes]) -> Path:
    link = member("certificate.json", type=tarfile.SYMTYPE, linkname="/etc/passwd")
    members = [link if name == "certificate.json" else member(name, body) for name, body in files.items()]
    return with_members(members, folder / "trick.tar")


def _text(change: Callable[[str], str]) -> Make:
    """Return a maker of a bundle whose certificate has another text."""

    def make(folder: Path, files: Mapping[str, bytes]) -> Path:
        body = change(files["certificate.json"].decode()).encode()
        return packed({**files, "certificate.json": body}, folder / "trick.tar")

    return make


TRICKS: dict[str, Make] = {
    "extra file": _plus("evil.txt", b"x"),
    "above the folder": _plus("../../evil", b"x"),
    "absolute": _plus("/tmp/evil", b"x"),
    "symbolic link": _plus("link", type=tarfile.SYMTYPE, linkname="/etc"),
    "hard link": _plus("hard", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "hard link to a member": _plus("certificate2.json", type=tarfile.LNKTYPE, linkname="certificate.json"),
    "device": _plus("device", type=tarfile.CHRTYPE),
    "fifo": _plus("fifo", type=tarfile.FIFOTYPE),
    "folder": _plus("folder", type=tarfile.DIRTYPE),
    "set-uid": _plus("program", mode=0o4755),
    "events twice, first": _plus("events.jsonl", b"{}\n", first=True),
    "events twice, last": _plus("events.jsonl", b"{}\n"),
    "certificate is a link": _linked,
    "script as page": lambda folder, files: packed(
        {**files, "certificate.html": b"<script>fetch('//x')</script>"}, folder / "trick.tar"
    ),
    "no page": lambda folder, files: packed({**files, "certificate.html": None}, folder / "trick.tar"),
    "bytes after the archive": _followed,
    "a name twice": _text(lambda text: text.replace("{", '{"sha256":"f",', 1)),
    "an unknown field": _text(lambda text: text.replace("{", '{"signed_by":"The Lab",', 1)),
    "two documents": _text(lambda text: text * 2),
}


def _zipped(name: str, write: Callable[[gzip.GzipFile], object]) -> Make:
    def make(folder: Path, files: Mapping[str, bytes]) -> Path:
        path = folder / f"{name}.tar.gz"
        with gzip.open(path, "wb", 1) as file:
            write(file)
        return path

    return make


def _header(name: str, **fields: object) -> bytes:
    entry, _ = member(name, **fields)
    entry.size = BOMB_BYTES if entry.type != tarfile.REGTYPE or name.endswith((".json", ".jsonl")) else 0
    return entry.tobuf(tarfile.USTAR_FORMAT)


def _large(name: str, byte: bytes, **fields: object) -> Callable[[gzip.GzipFile], object]:
    def write(file: gzip.GzipFile) -> None:
        file.write(_header(name, **fields))
        for _ in range(BOMB_BYTES // 2**20):
            file.write(byte * 2**20)

    return write


def _file(name: str, body: Callable[[Mapping[str, bytes]], bytes], *, length: int = 0) -> Make:
    def make(folder: Path, files: Mapping[str, bytes]) -> Path:
        path = folder / name
        with path.open("wb") as file:
            file.write(body(files))
            if length:
                file.truncate(length)
        return path

    return make


def _many(name: str, count: int) -> Callable[[Mapping[str, bytes]], bytes]:
    """Return a maker of a certificate with many empty entries in one of its lists."""

    def body(files: Mapping[str, bytes]) -> bytes:
        document = certificate_of(files)
        wrong: object = [{}] * count
        if name == "files":
            document["files"] = {f"f{number}": {} for number in range(count)}
        else:
            document["facts"][name] = wrong
        return json.dumps(document).encode()

    return body


BOMBS: dict[str, Make] = {
    "certificate": _zipped("certificate", _large("certificate.json", b" ")),
    "events": _zipped("events", _large("events.jsonl", b"\n")),
    "extended header": _zipped("pax", _large("x", b"\0", type=tarfile.XHDTYPE)),
    "long name": _zipped("long", _large("x", b"a", type=tarfile.GNUTYPE_LONGNAME)),
    "many members": _zipped(
        "members", lambda file: file.write(b"".join(_header(f"f{number}") for number in range(50_000)))
    ),
    "sparse document": _file("sparse.json", lambda files: b"{", length=2**32),
    "deep document": _file("deep.json", lambda files: b'{"facts":' + b"[" * 3_000_000),
    "many digits": _file("digits.json", lambda files: b'{"facts":{"x":' + b"9" * 20_000_000 + b"}}"),
    "many wrong facts": _file("facts.json", _many("steps", 140_000)),
    "many wrong files": _file("files.json", _many("files", 140_000)),
}
