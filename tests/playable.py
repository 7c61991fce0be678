"""Which environments of installed packs can be played where the tests run."""

from importlib.util import find_spec

ELSEWHERE = {"alfworld/Household-v0", "androidworld/AndroidWorld-v0"}
"""They need data or a device that must be named; their own tests play them."""


def can_play(name):
    """Whether what it needs is here: the bridge to PettingZoo needs packages that not everybody has."""
    return name not in ELSEWHERE and (not name.startswith("pettingzoo/") or bool(find_spec("rlcard")))
