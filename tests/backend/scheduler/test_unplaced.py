from __future__ import annotations

import pytest

from backend.planning.machines import NotPlaced
from backend.scheduler.unplaced import NO_PLACE, Unplaced, why_unplaced, with_own_jobs

REFUSED = "10.0.0.7 is not used (torch 2.1 there, 2.2 here)"


@pytest.mark.parametrize(
    ("found", "nodes", "may_change"),
    [
        (NotPlaced(needs="4 GPUs on one node", largest="2", forever=True), ["a"], False),
        (NotPlaced(needs="4 GPUs on one node", largest="2", forever=False), ["a"], True),
        (NotPlaced(others=("no node has the labels zone=b",), forever=True), ["a"], False),
        (None, ["a"], True),
        (None, [], False),
    ],
)
def test_says_why_a_model_has_no_place(found, nodes, may_change):
    why = why_unplaced(found, nodes=nodes, refusals=REFUSED)
    assert why.may_change is may_change
    assert NO_PLACE in why.reason
    assert "10.0.0.7 is not used" in why.reason


def test_names_jobs_of_the_reader_that_hold_gpus():
    why = Unplaced("needs 4 GPUs", may_change=True, holders=(("qwen", 4), ("nano", 0), ("llama", 2)))
    assert (
        with_own_jobs(why, {"qwen": ["job-1"], "nano": ["job-2"]}) == "needs 4 GPUs; your job-1 holds 4 GPUs"
    )
