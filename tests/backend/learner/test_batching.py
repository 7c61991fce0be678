import numpy as np
import pytest

from backend.learner.batching import micro_batches
from backend.learner.sequences import TrainSequence


def sequence(ids, sampled, temperature=1.0):
    mask = [place in sampled for place in range(len(ids))]
    return TrainSequence(
        token_ids=ids,
        loss_mask=mask,
        sampling_logprobs=[-1.0 if m else None for m in mask],
        temperature=temperature,
    )


def cut(sequences, **settings):
    """The micro-batches of one worker, one after the other."""
    return [batch for turn in micro_batches(sequences, **settings) for batch in turn]


def rows_of(batch):
    """The nodes and the places of each row, without padding."""
    start = 0
    for rows, columns in batch.blocks:
        for _ in range(rows):
            places = [p for p in range(start, start + columns) if batch.is_real[p]]
            assert places == list(range(start, start + len(places)))  # padding stands on the right
            yield batch.node_of[places], places
            start += columns
    assert start == len(batch.node_of)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 20, 1000])
def test_predicts_every_sampled_token_once_from_exactly_its_prefix(make_batch, share, max_tokens):
    sequences = make_batch(seed=3, groups=4, size=4)
    seen = {}
    for batch in cut(sequences, max_tokens=max_tokens, share_prefixes=share):
        history = {}
        for row, places in rows_of(batch):
            for column, node in enumerate(row):
                before = tuple(batch.token_ids[row[: column + 1]])
                assert history.setdefault(node, before) == before
                assert batch.positions[node] == column
                assert batch.first_place[node] <= places[column]
        assert batch.node_of[batch.first_place].tolist() == list(range(len(batch.token_ids)))
        for prediction, target, slot in zip(batch.prediction_of, batch.targets, batch.slots, strict=True):
            assert slot not in seen
            seen[slot] = (*history[batch.predictions[prediction]], target)
    expected = [
        tuple(s.token_ids[: place + 1])
        for s in sequences
        for place, sampled in enumerate(s.loss_mask)
        if sampled
    ]
    assert [seen[slot] for slot in range(len(expected))] == expected


def test_computes_a_shared_beginning_once():
    sequences = [
        sequence([1, 2, 3, 4, 5], {4}),
        sequence([1, 2, 3, 9, 5], {4}),
        sequence([1, 2, 3, 4, 6], {4}),
    ]
    (batch,) = cut(sequences, max_tokens=100, share_prefixes=True)
    assert sorted(batch.token_ids) == [1, 2, 3, 4, 9]
    assert len(batch.predictions) == 2  # two sequences drew from the same place


def test_needs_no_row_for_prefix_of_another_sequence():
    sequences = [sequence([1, 2, 3], {2}), sequence([1, 2, 3, 4, 5], {4}), sequence([1, 2, 3], {1, 2})]
    (batch,) = cut(sequences, max_tokens=100, share_prefixes=True)
    assert [row.tolist() for row, _ in rows_of(batch)] == [[0, 1, 2, 3]]
    assert sorted(batch.slots) == [0, 1, 2, 3]


def test_puts_rows_of_very_different_length_in_different_rectangles():
    sequences = [sequence([i + n, *range(n)], {n}) for i in range(5) for n in (50, 10)]
    (batch,) = cut(sequences, max_tokens=1000, share_prefixes=True)
    # Filled up to multiples of 16.
    assert batch.blocks == ((5, 64), (5, 16))


def test_predicts_same_place_at_two_temperatures_twice():
    sequences = [sequence([1, 2], {1}), sequence([1, 2], {1}, temperature=0.5)]
    (batch,) = cut(sequences, max_tokens=100, share_prefixes=True)
    assert len(batch.token_ids) == 1
    assert sorted(batch.temperatures) == [0.5, 1.0]


def test_leaves_out_what_follows_the_last_sampled_token():
    (batch,) = cut([sequence([1, 2, 3, 4, 5], {2})], max_tokens=100, share_prefixes=True)
    assert batch.token_ids.tolist() == [1, 2]
    assert batch.targets.tolist() == [3]


@pytest.mark.parametrize("share", [True, False])
def test_keeps_micro_batches_within_budget_unless_one_sequence_exceeds_it(make_batch, share):
    sequences = make_batch(seed=5, groups=6, size=4)
    for batch in cut(sequences, max_tokens=40, share_prefixes=share):
        cost = len(batch.token_ids) if share else batch.node_of.size
        assert cost <= 40 or len(batch.slots) <= 8  # a lone sequence


def test_pads_little_when_prefixes_are_not_shared():
    sequences = [sequence(list(range(n)), {n - 1}) for n in (40, 5, 39, 6, 41, 4)]
    batches = cut(sequences, max_tokens=125, share_prefixes=False)
    assert [[len(row) for row, _ in rows_of(batch)] for batch in batches] == [[40, 39, 38], [5, 4, 3]]


def test_skips_sequences_without_sampled_tokens_and_unwanted_ones():
    sequences = [sequence([1, 2, 3], {2}), sequence([1, 2], set()), sequence([4, 5, 6], {1, 2})]
    (batch,) = cut(sequences, max_tokens=100, share_prefixes=True, only=np.array([False, True, True]))
    assert batch.slots.tolist() == [1, 2]  # slot 0 belongs to the first sequence
    assert cut([sequences[1]], max_tokens=100, share_prefixes=True) == []


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("max_tokens", [200, 480, 4000])
def test_makes_rows_computed_together_about_equally_large(make_batch, workers, max_tokens):
    sequences = make_batch(seed=3, groups=12, size=4)
    turns = micro_batches(sequences, max_tokens=max_tokens, share_prefixes=True, workers=workers)
    sizes = [len(batch.token_ids) for turn in turns for batch in turn]
    assert {len(turn) for turn in turns} == {workers}
    assert max(sizes) <= max_tokens // workers
    if max_tokens == 4000:
        assert len(turns) == 1
    assert max(sizes) - min(sizes) <= 2 * max(len(sequence.token_ids) for sequence in sequences)


@pytest.mark.parametrize(
    ("groups", "size", "prompt", "answer"), [(4, 16, 80, 6), (2, 4, 150, 20), (3, 2, 400, 4)]
)
@pytest.mark.parametrize("workers", [2, 4])
def test_does_not_recompute_long_prompts_in_every_worker(groups, size, prompt, answer, workers):
    sequences = [
        sequence(
            [*(10 * group + k % 7 for k in range(prompt)), *(100 + member for _ in range(answer))],
            set(range(prompt, prompt + answer)),
        )
        for group in range(groups)
        for member in range(size)
    ]
    whole = cut(sequences, max_tokens=205, share_prefixes=True)
    turns = micro_batches(sequences, max_tokens=205, share_prefixes=True, workers=workers)
    nodes = sum(len(batch.token_ids) for turn in turns for batch in turn)
    assert nodes <= 1.1 * sum(len(batch.token_ids) for batch in whole)
    longest = max(len(sequence.token_ids) for sequence in sequences)
    assert max(sum(len(batch.token_ids) for batch in turn) for turn in turns) <= max(205, longest)
