"""Installed packs: the ids in their entry points, who owns which id, and the import of a pack.

A pack is a distribution with entry points in the group `tinkergym.envs` or `tinkergym.games`. The name of an
entry point is an id, its value the `module:attribute` that makes the environment or the game. Reading them
imports no pack. `import tinkergym` loads this module, so it must stay light.
"""

from __future__ import annotations

import importlib
import logging
import re
import site
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from typing import Any

import gymnasium as gym

from tinkergym.errors import InvalidEnvironmentError, TinkerGymError
from tinkergym.pack_output import output_to_stderr
from tinkergym.serving.names import REMOTE_ID

ENVIRONMENTS, GAMES = "tinkergym.envs", "tinkergym.games"
_REMOTE_ENTRY_POINT = "tinkergym.remote.remote_env:make_remote"
_PREFIX = "tinkergym-"
# The SDK's own entry points are its bridge to PettingZoo; its jobs call local classes `local/Name-v0`.
_RESERVED = {"tinkergym": "tinkergym", "pettingzoo": "tinkergym", "local": "tinkergym"}
_ID = re.compile(r"[\w:-]+/[\w:.-]+-v\d+")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

_log = logging.getLogger(__name__)
_lock = threading.RLock()
_claims: dict[tuple[str, str], Claim] = {}
"""The entry points that are in force, by group and id. Only ever replaced as a whole."""
_registered: dict[str, Any] = {}
"""What was registered with Gymnasium here, by id."""
_reported: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An id that a distribution provides."""

    id: str
    target: str
    """`module:attribute`: the class, or a function that takes the environment's arguments."""
    distribution: str
    version: str
    folder: str
    """Where the distribution's metadata is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """An installed pack of environments and games."""

    name: str
    """The namespace of its ids."""
    distribution: str
    version: str
    environment_ids: tuple[str, ...] = ()
    game_ids: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """One sentence for each entry point that was refused."""


def find_packs() -> list[Pack]:
    """Read the entry points of all installed distributions and make their ids known to Gymnasium.

    Imports no pack. Called by `import tinkergym`, and again to find packs installed or removed since then.
    """
    global _claims  # noqa: PLW0603 - replaced as a whole, so that other threads never see half of it
    with _lock:
        found = list(_packs_on_path())
        installed = {normalized(distribution.name) for distribution, _ in found}
        claims: dict[tuple[str, str], Claim] = {}
        packs = [_read(distribution, points, installed, claims) for distribution, points in found]
        _claims = claims
        _register_in_gymnasium({key[1]: claim for key, claim in claims.items() if key[0] == ENVIRONMENTS})
        for refusal in (refusal for pack in packs for refusal in pack.refused if refusal not in _reported):
            _reported.add(refusal)
            _log.warning("%s", refusal)
    return sorted(packs, key=lambda pack: (pack.name, pack.distribution))


def claim_of(group: str, id: str) -> Claim | None:  # noqa: A002 - Gymnasium's own name for it
    """Return the entry point that provides an id, or None."""
    return _claims.get((group, id))


def ids_of(group: str) -> list[str]:
    """Return the ids of all packs in a group, sorted."""
    return sorted(name for known, name in _claims if known == group)


def load(claim: Claim) -> Callable[..., Any]:
    """Import what makes an environment or a game; what the pack prints meanwhile goes to stderr.

    Raises:
        InvalidEnvironmentError: The pack cannot be imported, or does not have the attribute.
    """
    module, _, attribute = claim.target.partition(":")
    before = {name: gym.registry.get(name) for name in _registered}
    try:
        with output_to_stderr():
            made = getattr(_imported(module, claim.folder), attribute)
    except TinkerGymError:
        raise
    # A pack is foreign code; `sys.exit` at its import must not end the program either.
    except (Exception, SystemExit) as error:
        raise InvalidEnvironmentError(
            f"{claim.id} cannot be made, because the pack {claim.distribution} {claim.version} is broken: "
            f"{type(error).__name__}: {error}",
            hint=f"fix or reinstall {claim.distribution}",
            field="environment",
        ) from error
    finally:
        _restore(before)
    if not callable(made):
        raise InvalidEnvironmentError(
            f"{claim.id} cannot be made, because {claim.target} is not a class or a function",
            hint=f"fix the entry point of {claim.distribution}",
            field="environment",
        )
    return made  # type: ignore[no-any-return] # checked to be callable


def normalized(distribution: str) -> str:
    """Return a distribution's name as package indexes compare names."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def namespace_of(distribution: str) -> str:
    """Return the namespace of a distribution's ids: NAME for `tinkergym-NAME`, else its normalized name."""
    name = normalized(distribution)
    return "pettingzoo" if name == "tinkergym" else name.removeprefix(_PREFIX)


def _packs_on_path() -> Iterator[tuple[Distribution, list[tuple[str, str, str]]]]:
    """Yield each distribution that is a pack, with group, name and value of its entry points."""
    seen = set()
    for distribution in distributions():
        try:
            name = normalized(distribution.name)
            text = distribution.read_text("entry_points.txt") or ""
        # Metadata that cannot be read belong to a broken installation, perhaps of something else entirely.
        except Exception:
            continue
        # Of two with one name Python imports the first on its path.
        if name in seen or not (points := _entry_points(text)):
            continue
        seen.add(name)
        yield distribution, points


def _entry_points(text: str) -> list[tuple[str, str, str]]:
    # Not `Distribution.entry_points`, which fails as a whole for one line that is malformed.
    points, group = [], ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif group in (ENVIRONMENTS, GAMES) and line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            points.append((group, name.strip(), value.strip()))
    return points


def _read(
    distribution: Distribution,
    points: list[tuple[str, str, str]],
    installed: set[str],
    claims: dict[tuple[str, str], Claim],
) -> Pack:
    """Add a distribution's valid entry points to the claims and return it as a pack."""
    ids: dict[str, list[str]] = {ENVIRONMENTS: [], GAMES: []}
    refused = []
    for group, name, value in points:
        if reason := _why_refused(distribution, name, value, installed):
            refused.append(reason)
            continue
        claims[group, name] = Claim(
            id=name,
            target=value,
            distribution=distribution.name,
            version=str(distribution.version),
            folder=str(distribution.locate_file("")),
        )
        ids[group].append(name)
    return Pack(
        name=namespace_of(distribution.name),
        distribution=distribution.name,
        version=str(distribution.version),
        environment_ids=tuple(sorted(ids[ENVIRONMENTS])),
        game_ids=tuple(sorted(ids[GAMES])),
        refused=tuple(refused),
    )


def _why_refused(distribution: Distribution, name: str, value: str, installed: set[str]) -> str:
    claims = f"The entry point {name!r} of {distribution.name} {distribution.version} was ignored:"
    if not _ID.fullmatch(name):
        return f"{claims} it is not an id such as {namespace_of(distribution.name)}/Name-v0."
    if not _TARGET.fullmatch(value):
        return f"{claims} {value!r} is not of the form module:class or module:function."
    namespace = normalized(name.partition("/")[0])
    owner = _RESERVED.get(namespace, f"{_PREFIX}{namespace}")
    mine = normalized(distribution.name)
    # `tinkergym-board` comes before a distribution that is called `board`.
    if mine == owner or (namespace not in _RESERVED and mine == namespace and owner not in installed):
        return ""
    own = namespace_of(mine)
    advice = f" Its own namespace is {own}/." if own != namespace and own not in _RESERVED else ""
    return f"{claims} {namespace}/ belongs to {owner}.{advice}"


def _register_in_gymnasium(claims: Mapping[str, Claim]) -> None:
    targets = {REMOTE_ID: _REMOTE_ENTRY_POINT, **{name: claim.target for name, claim in claims.items()}}
    for name, spec in list(_registered.items()):
        if targets.get(name) != spec.entry_point:
            del _registered[name]
            if gym.registry.get(name) is spec:
                del gym.registry[name]
    for name, target in targets.items():
        # What a script registered before is left alone.
        if name not in gym.registry:
            gym.register(name, target)
            _registered[name] = gym.registry[name]


def _restore(before: Mapping[str, Any]) -> None:
    """Take back what the import of a pack changed about ids that packs own."""
    for name, spec in before.items():
        if spec is not None and gym.registry.get(name) is not spec:
            gym.registry[name] = spec


def _imported(module: str, folder: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
    # Installed with `pip install -e` after this process began: a .pth file says where it is, and Python reads
    # those only when it starts.
    site.addsitedir(folder)
    importlib.invalidate_caches()
    return importlib.import_module(module)
