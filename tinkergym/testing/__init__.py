"""For tests of environments and of anything that plays episodes: a contract, samplers, a tiny renderer.

A name is imported when it is first asked for: the processes of environments need few of them.
"""

from typing import TYPE_CHECKING

from tinkergym.basics.extras import late_names

if TYPE_CHECKING:
    from tinkergym.testing.bundles import FAMILIES, byte_bundle, family_bundle
    from tinkergym.testing.contract import EnvContract
    from tinkergym.testing.fake_connection import FakeConnection
    from tinkergym.testing.ledger_checks import RecordingSampler, ledger_violations
    from tinkergym.testing.samplers import RandomTokenSampler, ScriptedSampler

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

__getattr__ = late_names(
    __name__,
    {
        "bundles": "FAMILIES byte_bundle family_bundle",
        "contract": "EnvContract",
        "fake_connection": "FakeConnection",
        "ledger_checks": "RecordingSampler ledger_violations",
        "samplers": "RandomTokenSampler ScriptedSampler",
    },
)
