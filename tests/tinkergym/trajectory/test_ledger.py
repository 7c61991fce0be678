import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.trajectory.content_parts import ImageSpan
from tinkergym.trajectory.ledger import DIGEST_BYTES, Ledger, completion_digest
from tinkergym.trajectory.trajectory import Segment

TOKENS = st.lists(st.integers(0, 2**31), max_size=6)
LOGPROB = st.floats(-100, 0)
SAMPLED = st.lists(st.tuples(st.integers(0, 2**31), LOGPROB), min_size=1, max_size=6)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("given"), TOKENS),
        st.tuples(st.just("sampled"), SAMPLED),
        st.tuples(st.just("open"), st.none()),
    ),
    max_size=12,
)


def write(operations):
    """Apply operations; return the ledger and what each append put where."""
    ledger, spans = Ledger(), []
    for kind, value in operations:
        if kind == "given":
            ledger.append_given(value)
        elif kind == "open":
            ledger.open_segment()
        else:
            ids, logprobs = map(list, zip(*value, strict=True))
            spans.append((ledger.append_sampled(ids, logprobs), ids, logprobs))
    return ledger, spans


@given(OPERATIONS)
def test_gives_finite_logprob_exactly_where_policy_sampled_the_token(operations):
    ledger, _ = write(operations)
    for segment in ledger.segments():
        # Validation checks lengths, finiteness and the mask; the ledger itself skips it for speed.
        assert Segment.model_validate(segment.model_dump()) == segment


@given(OPERATIONS)
def test_places_sampled_ids_and_logprobs_unchanged_in_span(operations):
    ledger, spans = write(operations)
    segments = ledger.segments()
    for span, ids, logprobs in spans:
        segment, place = segments[span.segment], slice(span.start, span.end)
        assert segment.token_ids[place] == ids
        assert segment.sampling_logprobs[place] == logprobs
        assert all(segment.loss_mask[place])
    assert ledger.sampled_tokens == sum(len(ids) for _, ids, _ in spans)
    assert ledger.sampled_tokens == sum(sum(segment.loss_mask) for segment in segments)


@given(OPERATIONS, OPERATIONS)
def test_never_changes_what_is_in_a_ledger_by_later_entries(first, then):
    before = write(first)[0].segments()
    after = write([*first, *then])[0].segments()
    for old, new in zip(before, after, strict=False):
        assert new.token_ids[: len(old.token_ids)] == old.token_ids
        assert new.sampling_logprobs[: len(old.token_ids)] == old.sampling_logprobs


@given(OPERATIONS, TOKENS)
def test_copies_the_open_segment_as_context(operations, delta):
    ledger, _ = write(operations)
    length = ledger.length
    context = ledger.context(delta)
    assert context[length:] == delta
    context.append(7)
    assert ledger.length == length


@pytest.mark.parametrize(
    ("ids", "logprobs", "reason"),
    [
        ([], [], "at least one"),
        ([1, 2], [-0.1], "2 tokens were returned with 1"),
        ([1], [math.nan], "finite"),
        ([1, 2], [-math.inf, -0.5], "finite"),
    ],
)
def test_rejects_invalid_answer_whole(ids, logprobs, reason):
    ledger = Ledger()
    ledger.append_given([5])
    with pytest.raises(ValueError, match=reason):
        ledger.append_sampled(ids, logprobs)
    assert ledger.context() == [5]
    assert ledger.sampled_tokens == 0


def test_records_no_empty_segments():
    ledger = Ledger()
    ledger.open_segment()
    assert ledger.segments() == []
    ledger.append_given([1])
    ledger.open_segment()
    ledger.open_segment()
    ledger.append_given([2])
    assert [segment.token_ids for segment in ledger.segments()] == [[1], [2]]


CAT, DOG = "ca" * 32, "d0" * 32


def test_places_images_where_their_placeholders_came_to_stand():
    ledger = Ledger()
    ledger.append_given([1, 7, 7, 2], [ImageSpan(sha256=CAT, start=1, end=3)])
    ledger.append_sampled([5, 6], [-0.5, -0.25])
    ledger.append_given([3, 7, 7], [ImageSpan(sha256=DOG, start=1, end=3)])
    ledger.open_segment()
    ledger.append_given([7], [ImageSpan(sha256=CAT, start=0, end=1)])
    first, second = ledger.segments()
    assert [(i.sha256, i.start, i.end) for i in first.images] == [(CAT, 1, 3), (DOG, 7, 9)]
    assert [(i.sha256, i.start, i.end) for i in second.images] == [(CAT, 0, 1)]
    assert Segment.model_validate_json(first.model_dump_json()) == first


@pytest.mark.parametrize("spans", [[(2, 5)], [(0, 2), (1, 3)]])
def test_rejects_image_outside_its_tokens_or_across_another(spans):
    ledger = Ledger()
    with pytest.raises(ValueError, match="image"):
        ledger.append_given([1, 2, 3], [ImageSpan(sha256=CAT, start=a, end=b) for a, b in spans])
    assert ledger.length == 0


def test_samples_no_image_by_the_policy():
    with pytest.raises(ValueError, match="image 0 overlaps a sampled token"):
        Segment(
            token_ids=[1, 2],
            loss_mask=[False, True],
            sampling_logprobs=[None, -1.0],
            images=[ImageSpan(sha256=CAT, start=1, end=2)],
        )


def test_digests_version_and_every_token_but_not_the_container():
    digest = completion_digest(1, [2, 3])
    assert digest == completion_digest(1, (2, 3))
    assert len(digest) == DIGEST_BYTES
    others = {completion_digest(*other) for other in ((0, [2, 3]), (1, [3, 2]), (1, [2]), (1, [2, 3, 0]))}
    assert len(others | {digest}) == 5
