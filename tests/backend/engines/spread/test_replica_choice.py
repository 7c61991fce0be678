from __future__ import annotations

import pytest

from backend.engines.spread.replica_choice import CROWDED, SLACK, ReplicaChoice
from tinkergym.schema.sampling import SampleRequest


def request(prompt: int = 1, session: str = "", policy: str = "p") -> SampleRequest:
    return SampleRequest(
        request_id="r", policy=policy, prompt_ids=[prompt, 2, 3], max_tokens=1, session_id=session
    )


def test_prefers_the_least_loaded_for_new_prompts():
    choice = ReplicaChoice()
    assert choice.choose(request(1), {"a": 3, "b": 1, "c": 2}) == "b"


@pytest.mark.parametrize(("load", "stays"), [(CROWDED * 3 + SLACK, True), (CROWDED * 3 + SLACK + 1, False)])
def test_keeps_a_session_where_its_cache_is_unless_crowded(load, stays):
    choice = ReplicaChoice()
    assert choice.choose(request(session="s"), {"a": 0, "b": 0}) == "a"
    chosen = choice.choose(request(2, session="s"), {"a": load, "b": 3})
    assert chosen == ("a" if stays else "b")


def test_moves_session_of_a_replica_lost_or_without_the_version():
    choice = ReplicaChoice()
    assert choice.choose(request(session="s"), {"a": 0, "b": 1}) == "a"
    assert choice.choose(request(session="s"), {"b": 9}) == "b"
    assert choice.choose(request(session="s"), {"a": 1, "b": 1}) == "b"


@pytest.mark.parametrize(("load", "chosen"), [(SLACK, "a"), (SLACK + 1, "b")])
def test_keeps_equal_prompts_together_within_the_slack(load, chosen):
    choice = ReplicaChoice()
    assert choice.choose(request(7, session="one"), {"a": 0, "b": 0}) == "a"
    assert choice.choose(request(7, session="two"), {"a": load, "b": 0}) == chosen


def test_shares_no_prompt_between_owners_or_policies():
    choice = ReplicaChoice()
    assert choice.choose(request(7, session="tenant-1/s"), {"a": 0, "b": 0}) == "a"
    assert choice.choose(request(7, session="tenant-2/s"), {"a": 1, "b": 0}) == "b"
    assert choice.choose(request(7, session="tenant-1/t", policy="q"), {"a": 1, "b": 0}) == "b"
