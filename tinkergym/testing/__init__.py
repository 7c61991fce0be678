"""For tests of environments and of whatever plays episodes: a contract, samplers, a tiny renderer."""

from tinkergym.testing.bundles import byte_bundle
from tinkergym.testing.contract import EnvContract
from tinkergym.testing.samplers import RandomTokenSampler, ScriptedSampler

__all__ = ["EnvContract", "RandomTokenSampler", "ScriptedSampler", "byte_bundle"]
