from tinkergym.trajectory.digests import DIGEST_BYTES, EMPTY_CHAIN, chained, completion_digest


def test_digests_version_and_every_token_but_not_the_container():
    digest = completion_digest(1, [2, 3])
    assert digest == completion_digest(1, (2, 3))
    assert len(digest) == DIGEST_BYTES
    others = {completion_digest(*other) for other in ((0, [2, 3]), (1, [3, 2]), (1, [2]), (1, [2, 3, 0]))}
    assert len(others | {digest}) == 5


def test_chains_every_entry_and_their_order():
    ab = chained(chained(EMPTY_CHAIN, b"a"), b"b")
    assert ab == chained(chained(EMPTY_CHAIN, b"a"), b"b")
    assert ab != chained(chained(EMPTY_CHAIN, b"b"), b"a")
    assert ab != chained(EMPTY_CHAIN, b"ab")
