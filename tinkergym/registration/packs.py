"""Installed packs: the ids in their entry points, who owns which id, which are games, and a pack's import.

A pack is a distribution with entry points in the group `tinkergym.envs` or `tinkergym.games`. The name of an
entry point is an id, and its value the `module:attribute` that creates the environment or the game. Reading
them imports no pack. `import tinkergym` loads this module, so it must stay light.
"""

from __future__ import annotations

import importlib
import logging
import re
import site
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym

from tinkergym.errors import InvalidEnvironmentError, TinkerGymError
from tinkergym.registration.pack_metadata import (
    ENVIRONMENTS,
    GAMES,
    ListedDistribution,
    listed_distributions,
    normalized,
)
from tinkergym.registration.pack_output import output_to_stderr
from tinkergym.schema.ids import environment_namespace
from tinkergym.schema.names import REMOTE_ID
from tinkergym.user_code.quoting import raised

_REMOTE_ENTRY_POINT = "tinkergym.serving.remote_env:make_remote"
_PREFIX = "tinkergym-"
# The SDK's own entry points are its bridge to PettingZoo; local classes are called `local/Name-v0`.
_RESERVED = {"tinkergym": "tinkergym", "pettingzoo": "tinkergym", "local": "tinkergym"}
# No colon, which separates a module's name in Gymnasium, and versions in Gymnasium's form: it would register
# -v00 as -v0. The length is that of a job's description.
_ID = re.compile(r"(?=.{1,200}\Z)[\w-]+/[\w.-]+-v(0|[1-9][0-9]*)")
_TARGET = re.compile(r"(?=.{1,500}\Z)[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

_log = logging.getLogger(__name__)
_lock = threading.RLock()
_claims: dict[tuple[str, str], Claim] = {}
"""The valid entry points, by group and id. Only ever replaced as a whole."""
_packs: list[Pack] = []
"""What `find_packs` last found. Only ever replaced as a whole."""
_registered: dict[str, Any] = {}
"""What this module registered with Gymnasium, by id."""
_reported: set[str] = set()
_MOST_REPORTED = 10
"""Warnings about one pack; `tinkergym envs` shows all that was refused."""
_loads = 0
"""The number of running imports of packs."""
_imported_ns: dict[str, int] = {}
"""By top-level module, when the pack that was imported had been installed."""
_at_first_load: dict[str, Any] = {}
"""Gymnasium's entries for the ids of packs before the first import began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An id that a distribution provides."""

    id: str
    target: str
    """`module:attribute`: the class, or a function that takes the environment's arguments."""
    distribution: str
    version: str
    folder: str
    """The folder of the distribution's metadata."""
    record: Path | None = None
    """The file that an installer writes last."""

    @property
    def installed_ns(self) -> int:
        """When it was installed, in nanoseconds; 0 if it no longer is, or that is not known."""
        try:
            return self.record.stat().st_mtime_ns if self.record else 0
        except OSError:
            return 0


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
    """One sentence for each refused entry point."""


def find_packs() -> list[Pack]:
    """Read the entry points of all installed distributions and register their ids with Gymnasium.

    Imports no pack. Called by `import tinkergym`, and again to find packs that were installed or removed
    later.
    """
    global _claims, _packs  # noqa: PLW0603 - replaced as wholes, so that other threads never see half of one
    with _lock:
        found = list(listed_distributions())
        installed = {normalized(distribution.name) for distribution in found}
        claims: dict[tuple[str, str], Claim] = {}
        packs = [_read(distribution, installed, claims) for distribution in found]
        _claims = claims
        _register_in_gymnasium({key[1]: claim for key, claim in claims.items() if key[0] == ENVIRONMENTS})
        for pack in packs:
            for refusal in pack.refused[:_MOST_REPORTED]:
                _report(refusal)
        _packs = sorted(packs, key=lambda pack: (pack.name, pack.distribution))
        return list(_packs)


def known_packs() -> list[Pack]:
    """Return the packs that `find_packs` last found, without reading the installed distributions again."""
    return list(_packs)


def claim_of(group: str, id: str) -> Claim | None:  # noqa: A002 - Gymnasium's own name for it
    """Return the entry point for an id, or None."""
    return _claims.get((group, id))


def ids_of(group: str) -> list[str]:
    """Return the ids of all packs in a group, sorted."""
    return sorted(name for known, name in _claims if known == group)


def pack_modules() -> set[str]:
    """Return the top-level modules of all installed packs."""
    return {_top_module(claim) for claim in _claims.values()}


def _top_module(claim: Claim) -> str:
    return claim.target.partition(":")[0].partition(".")[0]


def load(claim: Claim) -> Callable[..., Any]:
    """Import the constructor of an environment or a game. Output of the pack goes to stderr.

    Raises:
        InvalidEnvironmentError: The pack cannot be imported, or does not have the attribute.
    """
    claim = _reinstalled(claim)
    module, _, attribute = claim.target.partition(":")
    try:
        with _ids_kept(), output_to_stderr():
            made = getattr(_imported(module, claim.folder), attribute)
    except TinkerGymError:
        raise
    # A pack is foreign code; `sys.exit` at its import must not end the program either.
    except BaseException as error:
        refuse_interrupt(error)
        raise InvalidEnvironmentError(
            f"{claim.id} cannot be created, because the pack {claim.distribution} {claim.version} is broken: "
            f"{raised(error)}",
            hint=f"fix or reinstall {claim.distribution}",
            field="environment",
        ) from error
    if not callable(made):
        raise InvalidEnvironmentError(
            f"{claim.id} cannot be created, because {claim.target} is not a class or a function",
            hint=f"fix the entry point of {claim.distribution}",
            field="environment",
        )
    return made  # type: ignore[no-any-return] # checked to be callable


def installed_ns(id: str) -> int:  # noqa: A002 - as above
    """Return when the pack of an environment was installed, in nanoseconds; 0 if that is not known."""
    claim = claim_of(ENVIRONMENTS, id) or claim_of(GAMES, id)
    return claim.installed_ns if claim else 0


def _reinstalled(claim: Claim) -> Claim:
    """Return the claim of the pack as it is installed now, and forget its modules if it was installed anew.

    So a pack that is installed again is played as it is now without a restart of the program: environments
    made before keep their classes, those made from now on have the new ones.
    """
    if claim.record and not claim.record.parent.is_dir():
        find_packs()  # Another version has another folder.
        again = (claim_of(group, claim.id) for group in (ENVIRONMENTS, GAMES))
        claim = next((one for one in again if one is not None), claim)
    root, now = _top_module(claim), claim.installed_ns
    with _lock:
        if now and _imported_ns.setdefault(root, now) != now:
            _imported_ns[root] = now
            for name in [name for name in sys.modules if name == root or name.startswith(f"{root}.")]:
                del sys.modules[name]
            importlib.invalidate_caches()
    return claim


def refuse_interrupt(error: BaseException) -> None:
    """Re-raise a Ctrl-C, which only the main thread receives; other errors are the pack's own."""
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error


def namespace_of(distribution: str) -> str:
    """Return the namespace of a distribution's ids: NAME for `tinkergym-NAME`, else its normalized name."""
    name = normalized(distribution)
    return "pettingzoo" if name == "tinkergym" else name.removeprefix(_PREFIX)


def _read(
    distribution: ListedDistribution, installed: set[str], claims: dict[tuple[str, str], Claim]
) -> Pack:
    """Add a distribution's valid entry points to the claims and return its pack."""
    ids: dict[str, list[str]] = {ENVIRONMENTS: [], GAMES: []}
    refused = list(distribution.refused)
    for group, name, value in distribution.points:
        if reason := _why_refused(distribution, name, value, installed):
            refused.append(reason)
            continue
        claims[group, name] = Claim(
            id=name,
            target=value,
            distribution=distribution.name,
            version=distribution.version,
            folder=distribution.folder,
            record=distribution.record,
        )
        ids[group].append(name)
    return Pack(
        name=namespace_of(distribution.name),
        distribution=distribution.name,
        version=distribution.version,
        environment_ids=tuple(sorted(ids[ENVIRONMENTS])),
        game_ids=tuple(sorted(ids[GAMES])),
        refused=tuple(refused),
    )


def _why_refused(distribution: ListedDistribution, name: str, value: str, installed: set[str]) -> str:
    claims = f"The entry point {name!r:.210} of {distribution.name} {distribution.version} was ignored:"
    if not _ID.fullmatch(name):
        return f"{claims} it is not an id such as {namespace_of(distribution.name)}/Name-v0."
    if not _TARGET.fullmatch(value):
        return f"{claims} {value!r:.210} is not of the form module:class or module:function."
    namespace = normalized(environment_namespace(name))
    owner = _RESERVED.get(namespace, f"{_PREFIX}{namespace}")
    mine = normalized(distribution.name)
    # `tinkergym-board` takes precedence over a distribution named `board`.
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
        # Keep what a script registered before.
        if name not in gym.registry:
            try:
                gym.register(name, target)
            except gym.error.Error as error:  # For example, a script registered it without a version.
                _report(f"{name} cannot be registered: {error}")
                continue
            _registered[name] = gym.registry[name]


def _report(refusal: str) -> None:
    if refusal not in _reported:
        _reported.add(refusal)
        _log.warning("%s", refusal)


@contextmanager
def _ids_kept() -> Iterator[None]:
    """Undo what the import of a pack changes about ids owned by packs.

    One snapshot of the registry serves all overlapping imports: a second one, taken during the first import,
    would include its changes.
    """
    global _loads  # noqa: PLW0603 - guarded by the lock
    with _lock:
        if not _loads:
            _at_first_load.update({name: (gym.registry.get(name), _registered[name]) for name in _registered})
        _loads += 1
    try:
        yield
    finally:
        with _lock:
            _loads -= 1
            for name, (spec, ours) in _at_first_load.items():
                # An id that `find_packs` changed meanwhile keeps the new value.
                if spec is not None and _registered.get(name) is ours and gym.registry.get(name) is not spec:
                    gym.registry[name] = spec
            if not _loads:
                _at_first_load.clear()


def _imported(module: str, folder: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
    # Installed with `pip install -e` after this process started: a .pth file has its location, and Python
    # only reads those at startup.
    site.addsitedir(folder)
    importlib.invalidate_caches()
    return importlib.import_module(module)


class RegisteredGame(Protocol):
    """A game that was registered in this process."""

    @property
    def name(self) -> str:
        """Its location: `module:attribute`."""

    def create(self, on_illegal: str | None, render_mode: str | None, settings: dict[str, Any]) -> Any:
        """Return it as a PettingZoo AEC environment."""


registered_here: dict[str, RegisteredGame] = {}
"""Games by id."""


def registered_games() -> list[str]:
    """Return the ids of all games of packs and of this process, sorted."""
    find_packs()
    return sorted({*registered_here, *ids_of(GAMES)})
