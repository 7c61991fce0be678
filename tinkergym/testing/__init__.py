"""For tests of environments and of anything that plays episodes: a contract, samplers, a tiny renderer.

A name is imported when it is first asked for: the processes of environments need few of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinkergym.testing.bundles import byte_bundle
    from tinkergym.testing.contract import EnvContract
    from tinkergym.testing.fake_connection import FakeConnection
    from tinkergym.testing.ledger_checks import RecordingSampler, ledger_violations
    from tinkergym.testing.samplers import RandomTokenSampler, ScriptedSampler
    from tinkergym.testing.template_families import FAMILIES, family_bundle

__all__ = [
    "FAMILIES",
    "EnvContract",
    "FakeConnection",
    "RandomTokenSampler",
    "RecordingSampler",
    "ScriptedSampler",
    "byte_bundle",
    "family_bundle",
    "ledger_violations",
]

_HOMES = {
    "FAMILIES": "template_families",
    "EnvContract": "contract",
    "FakeConnection": "fake_connection",
    "RandomTokenSampler": "samplers",
    "RecordingSampler": "ledger_checks",
    "ScriptedSampler": "samplers",
    "byte_bundle": "bundles",
    "family_bundle": "template_families",
    "ledger_violations": "ledger_checks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tinkergym.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tinkergym.testing.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
