"""The files that browsers load: a page, and its scripts and styles, read once from a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, Template

PACKAGED = Path(__file__).parent / "frontend"
"""The service's own."""

_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
}
_OTHER = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is sent."""

    body: bytes
    media_type: str
    etag: str


@dataclass(frozen=True, slots=True)
class Frontend:
    """A frontend: `index.html`, a Jinja template for every page, and the files of its folder `static`."""

    page: Template
    files: Mapping[str, StaticFile]
    """By path below `static`, so that no request can name another file."""

    @classmethod
    def read(cls, folder: Path) -> Frontend:
        """Read a frontend's files.

        Raises:
            OSError: They cannot be read.
        """
        static = folder / "static"
        files = {
            path.relative_to(static).as_posix(): _file(path)
            for path in sorted(static.rglob("*"))
            if path.is_file()
        }
        template = (folder / "index.html").read_text(encoding="utf-8")
        return cls(Environment(autoescape=True).from_string(template), files)


def _file(path: Path) -> StaticFile:
    body = path.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return StaticFile(body, _TYPES.get(path.suffix, _OTHER), etag)
