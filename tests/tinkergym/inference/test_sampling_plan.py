import pytest

from tinkergym.errors import PromptTooLongError
from tinkergym.inference.sampling_plan import SamplingPlan, seed_of
from tinkergym.schema.decoding import Decoding


def plan(**changes):
    settings = {"run_id": "r", "policy": "nano", "policy_version": None, "n": 3, "stop_ids": [1]}
    return SamplingPlan(**settings | {"decoding": Decoding(seed=5), "context_length": 20} | changes)


def test_gives_each_completion_its_own_seed_forever():
    assert (seed_of(0, 0, 0), seed_of(5, 7, 2)) == (3051931488724851722, 99340162450416414)
    seeds = {seed_of(base, row, sample) for base in (0, 1) for row in range(50) for sample in range(4)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_asks_for_the_missing_completions_with_unchanged_seeds():
    whole, rest = plan().requests(7, [1, 2]), plan().requests(7, [1, 2], first=1)
    assert rest == whole[1:]
    assert [request.seed for request in whole] == [seed_of(5, 7, sample) for sample in range(3)]


def test_leaves_completions_the_room_that_the_prompt_leaves():
    assert {request.max_tokens for request in plan().requests(0, [1] * 15)} == {5}
    with pytest.raises(PromptTooLongError):
        plan().requests(0, [1] * 20)
