"""Calls that fork, in parallel and with several choices, as branches that share their beginning."""

import concurrent.futures

import pytest

from tests.tinkergym.recording.call_trees import check
from tests.tinkergym.recording.sessions import BODY, Remembering, played, posted, said, trained, user


def test_branches_where_histories_part_and_trains_shared_tokens_once():
    def fork(session):
        first = said(session, user("a"))
        said(session, user("a"), first, user("left"))
        said(session, user("a"), first, user("right"))
        said(session, user("another"))
        return 1.0

    record = played(fork)["agent"]
    assert [turn.segment for turn in record.turns] == [0, 0, 1, 2]
    shared = record.turns[0].end
    left, right, _ = record.segments
    assert left.token_ids[:shared] == right.token_ids[:shared]
    assert not any(right.loss_mask[:shared])
    assert sum(sum(one.loss_mask) for one in record.segments) == sum(map(len, trained(record)))
    assert [turn.move for turn in record.turns] == [1, 2, 3, 4]


def test_answers_parallel_calls_each_in_its_own_branch():
    def spread(session):
        first = said(session, user("a"))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda k: said(session, user("a"), first, user(f"{k}")), range(4)))
        return float(len(found))

    record = played(spread)["agent"]
    assert (record.episode_return, len(record.turns), len(record.segments)) == (4.0, 5, 4)


def test_trains_only_on_the_choice_that_is_continued():
    def best_of(session):
        choices = posted(session, BODY | {"n": 3}).json()["choices"]
        said(session, user("a"), choices[1]["message"], user("b"))
        return 1.0

    sampler = Remembering()
    record = played(best_of, sampler=sampler)["agent"]
    sampled = [ids for _, ids in sampler.sampled.values()]
    assert trained(record) == [sampled[1], sampled[3]]
    assert record.turns[-1].metrics["untrained_answers/not_chosen"] == 2


@pytest.mark.parametrize("seed", range(20))
def test_trains_on_sampled_tokens_once_in_random_call_trees(seed):
    check(seed)


@pytest.mark.full("plays 1,980 random programs: minutes")
def test_trains_on_sampled_tokens_once_in_two_thousand_call_trees():
    for seed in range(20, 2000):
        check(seed)
