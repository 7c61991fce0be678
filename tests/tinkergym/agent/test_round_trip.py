from tinkergym.agent.round_trip import round_trip
from tinkergym.testing import byte_bundle


def test_gives_same_tokens_turn_by_turn_as_together():
    found = round_trip(byte_bundle())
    assert found.exact
    assert found.prefix_preserving
    assert not found.rewrites_history
    assert {result.outcome for result in found.conversations} <= {"same", "refused"}
