"""What installed distributions declare about their packs: names and entry points, read without importing.

The metadata are untrusted, so everything is bounded and escaped before it is printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from tinkergym.user_code.quoting import printable, quoted

ENVIRONMENTS, GAMES = "tinkergym.envs", "tinkergym.games"

MOST_IDS = 1000
"""Entry points read per distribution."""
_MOST_CHARACTERS = 1_000_000
# A name as PyPI allows it; the length is that of a job's description.
_NAME = re.compile(r"(?=.{1,200}\Z)[A-Z0-9]([A-Z0-9._-]*[A-Z0-9])?", re.IGNORECASE | re.ASCII)
# With the lines that continue it, which no valid name has.
_NAME_HEADER = re.compile(r"^Name:(.*(?:\n[ \t].*)*)", re.IGNORECASE | re.MULTILINE)

Point = tuple[str, str, str]
"""Group, name and value of an entry point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDistribution:
    """A distribution with our entry points."""

    name: str
    version: str
    folder: str
    """Its installation folder."""
    record: Path | None = None
    """The file that an installer writes last; None if there is none."""
    points: tuple[Point, ...]
    refused: tuple[str, ...] = ()
    """One sentence for each reason why some of its entry points are ignored."""


@dataclass(frozen=True, slots=True)
class _Metadata:
    distribution: Distribution
    points: tuple[Point, ...]
    refused: tuple[str, ...]

    @property
    def place(self) -> Path:
        """The folder of the metadata."""
        # No public attribute says which folder in `locate_file("")` it is.
        place = getattr(self.distribution, "_path", None) or self.distribution.locate_file("")
        return Path(str(place))

    def __str__(self) -> str:
        return f"{version_of(self.distribution)} in {printable(str(self.place))}"


def listed_distributions() -> Iterator[ListedDistribution]:
    """Yield each distribution that lists environments or games.

    If several have the same name, only entry points that are the same in all of them count.
    """
    found: dict[str, list[_Metadata]] = {}
    for distribution in distributions():
        try:
            name, metadata = _name(distribution), _read(distribution)
        # Unreadable metadata belong to a broken installation, perhaps of something unrelated.
        except Exception:
            continue
        # pip renames a package to this before removing it, and leaves it behind if it is killed.
        if not isinstance(name, str) or metadata.place.name.startswith("~"):
            continue
        if _NAME.fullmatch(name):
            found.setdefault(normalized(name), []).append(metadata)
        elif metadata.points:
            yield _nameless(metadata, name)
    for several in found.values():
        if any(metadata.points or metadata.refused for metadata in several):
            yield _listed(several)


def normalized(distribution: str) -> str:
    """Return a distribution's normalized name."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def version_of(distribution: Distribution) -> str:
    """Return a distribution's version, safe to print."""
    return printable(quoted(distribution.version))


def _name(distribution: Distribution) -> str | None:
    # `Distribution.metadata` parses the long description, too, which takes most of the time.
    files = ("METADATA", "PKG-INFO", "")  # The last is an .egg-info that is a file.
    text = next(filter(None, map(distribution.read_text, files)), "")
    header = _NAME_HEADER.search(text.partition("\n\n")[0])
    return header[1].lstrip(" \t") if header else None


def _read(distribution: Distribution) -> _Metadata:
    text = distribution.read_text("entry_points.txt") or ""
    if len(text) > _MOST_CHARACTERS:
        return _Metadata(distribution, (), (f"its entry_points.txt has {len(text)} characters",))
    points = _entry_points(text)
    refused: tuple[str, ...] = ()
    if len(points) > MOST_IDS:
        refused = (f"only the first {MOST_IDS} of its {len(points)} environments and games count",)
    return _Metadata(distribution, tuple(points[:MOST_IDS]), refused)


def _entry_points(text: str) -> list[Point]:
    # Not `Distribution.entry_points`, which fails completely for one malformed line.
    points, group = [], ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif group in (ENVIRONMENTS, GAMES) and line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            points.append((group, name.strip(), value.strip()))
    return points


def _nameless(metadata: _Metadata, name: str) -> ListedDistribution:
    shown = printable(quoted(name))
    return ListedDistribution(
        name=shown,
        version=version_of(metadata.distribution),
        folder="",
        points=(),
        refused=(f"The distribution {metadata} was ignored: {shown!r} is not a valid name.",),
    )


def _listed(several: list[_Metadata]) -> ListedDistribution:
    """Combine the metadata of all distributions with one name."""
    different: list[_Metadata] = []
    for metadata in several:
        twin = next((known for known in different if _are_one(known, metadata)), None)
        if twin is None:
            different.append(metadata)
        elif metadata.points and (not twin.points or _source_folder(metadata.distribution) is not None):
            different[different.index(twin)] = metadata
    first = different[0]
    name = first.distribution.name
    about = f"{name} {version_of(first.distribution)}"
    refused = [f"{about}: {reason}." for metadata in different for reason in metadata.refused]
    said = [{(group, point): value for group, point, value in metadata.points} for metadata in different]
    places = " and ".join(map(str, different))
    why = (
        f"{name} is installed {len(different)} times, but not always with it: {places}. Uninstall all but "
        f"one."
        if len(different) > 1
        else f"{about} also has a different value for it."
    )
    points = []
    for point in dict.fromkeys(point for metadata in different for point in metadata.points):
        if all(one.get(point[:2]) == point[2] for one in said):
            points.append(point)
        else:
            refused.append(f"The entry point {point[1]!r:.210} = {point[2]!r:.210} was ignored: {why}")
    return ListedDistribution(
        name=name,
        version=version_of(first.distribution),
        folder=str(first.distribution.locate_file("")),
        record=first.place / "RECORD",
        points=tuple(points),
        refused=tuple(refused),
    )


def _are_one(one: _Metadata, other: _Metadata) -> bool:
    """Whether one is the copy that setuptools keeps in the sources from which pip installed the other.

    The same metadata on two paths do not conflict.
    """
    return _is_built_in(one, other) or _is_built_in(other, one)


def _is_built_in(copy: _Metadata, installed: _Metadata) -> bool:
    source = _source_folder(installed.distribution)
    if source is None or copy.place.suffix != ".egg-info":
        return False
    folder = copy.place.parent.resolve()
    return source in (folder, folder.parent)


def _source_folder(distribution: Distribution) -> Path | None:
    """Return the folder that pip installed a distribution from, or None if it came from elsewhere."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        url = urlsplit(origin["url"])
        is_folder = url.scheme == "file" and "dir_info" in origin
        return Path(url2pathname(url.path)).resolve() if is_folder else None
    # RuntimeError: deeply nested JSON, or circular links.
    except (AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError):
        return None
