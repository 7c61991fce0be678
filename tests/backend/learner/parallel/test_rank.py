from hypothesis import given
from hypothesis import strategies as st

from backend.learner.parallel.rank import shards
from backend.learner.sequences import TrainSequence


def sequence(ids, sampled):
    mask = [False] * (len(ids) - 1) + [sampled]
    return TrainSequence(
        token_ids=ids, loss_mask=mask, sampling_logprobs=[-1.0 if m else None for m in mask], advantage=1.0
    )


sequences = st.lists(
    st.builds(sequence, st.lists(st.integers(0, 3), min_size=2, max_size=12), st.booleans()), max_size=20
)


@given(sequences, st.integers(1, 6))
def test_sends_every_sequence_with_sampled_token_to_one_rank(batch, ranks):
    parts = shards(batch, ranks)
    assert len(parts) == ranks
    sampled = [i for i, one in enumerate(batch) if any(one.loss_mask)]
    if sampled:
        assert sorted(i for part in parts for i in part) == sampled
        lengths = [sum(len(batch[i].token_ids) for i in part) for part in parts]
        longest = max(len(batch[i].token_ids) for i in sampled)
        assert max(lengths) <= sum(lengths) / ranks + longest
    else:
        assert parts == [list(range(len(batch))), *([] for _ in range(ranks - 1))]


def test_keeps_sequences_that_begin_alike_together():
    batch = [sequence([group, 9, member], sampled=True) for member in range(3) for group in range(2)]
    assert [{batch[i].token_ids[0] for i in part} for part in shards(batch, 2)] == [{0}, {1}]
