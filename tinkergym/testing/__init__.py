"""For tests of environments and of anything that plays episodes: a contract, samplers, a tiny renderer."""

from tinkergym.testing.bundles import byte_bundle
from tinkergym.testing.contract import EnvContract
from tinkergym.testing.fake_connection import FakeConnection
from tinkergym.testing.ledger_checks import RecordingSampler, ledger_violations
from tinkergym.testing.samplers import RandomTokenSampler, ScriptedSampler
from tinkergym.testing.templates import FAMILIES, family_bundle

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
