"""Which sequences the slots of a cache hold, seen by what stands in its memory."""

from __future__ import annotations

import pytest
import torch

from backend.engines.transformers.loaded_policies import LoadedPolicy
from backend.engines.transformers.slot_table import Counters, SlotLimits, SlotTable

PROMPT = list(range(20))


@pytest.fixture
def table():
    """Two slots of 128 tokens, which are all that the memory has room for; one of 256 takes as much."""
    limits = SlotLimits(slots=2, bytes=256, length=512, first_slots=2, first_length=128)
    return SlotTable(limits, Counters(), bytes_per_token=1, device=torch.device("cpu"), dtype=torch.float32)


def keys(table, slot):
    """One number for each of a slot's places, to be written to."""
    return table.cache.layer(0, heads=1, key_dim=1, value_dim=1)[0][slot.index, 0, :, 0]


def test_copies_prompt_before_giving_up_its_slot(table):
    policy = LoadedPolicy(name="p", version=1)
    source = table.take(policy, "", list(PROMPT))
    keys(table, source)[: len(PROMPT)] = torch.arange(1.0, 21.0)
    source.cached = len(PROMPT)
    table.remember_prompt(source)
    table.release(source)
    follower = table.take(policy, "", list(PROMPT))
    assert follower is not source
    assert table.copy_prompt(follower)
    # Before the copy is made somebody needs longer slots, of which there is one only.
    assert table.grow_for(200)
    assert table.slots == [follower]
    table.finish_copies()
    assert keys(table, follower)[: follower.cached].tolist() == list(range(1, 20))
