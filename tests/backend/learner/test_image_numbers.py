import numpy as np

from backend.learner.image_numbers import ImageNumbers
from tinkergym.trajectory.content_parts import ImageSpan

ONE, OTHER = "ab" * 32, "cd" * 32


def prompt(*images):
    """Return ids with a placeholder (7) for each token of an image of two tokens, and the spans."""
    ids, spans = [1], []
    for sha256 in images:
        spans.append(ImageSpan(sha256=sha256, start=len(ids), end=len(ids) + 2))
        ids += [7, 7, 2]
    return np.array(ids, dtype=np.int64), spans


def numbered(numbers, *images):
    ids, spans = prompt(*images)
    numbers.put_into(ids, spans)
    return ids


def test_gives_equal_ids_to_equal_images_only():
    numbers = ImageNumbers()
    one, again, other = numbered(numbers, ONE), numbered(numbers, ONE), numbered(numbers, OTHER)
    assert np.array_equal(one, again)
    assert one[0] == other[0] and one[-1] == other[-1]
    assert not set(one[1:3]) & set(other[1:3])
    assert one[1:3].min() > 10**6


def test_restores_images_of_a_micro_batch_and_their_places():
    numbers = ImageNumbers()
    numbered(numbers, OTHER)  # of another micro-batch
    ids = np.concatenate([numbered(numbers, ONE), numbered(numbers, OTHER, ONE)])
    images, nodes, rows = numbers.taken_out_of(ids)
    assert images == ((OTHER, 2), (ONE, 2))
    assert nodes.tolist() == [1, 2, 5, 6, 8, 9]
    assert rows.tolist() == [2, 3, 0, 1, 2, 3]
    assert ids[nodes].tolist() == [0] * 6


def test_has_none_in_a_batch_of_text():
    images, nodes, rows = ImageNumbers().taken_out_of(np.array([1, 2, 3]))
    assert (images, len(nodes), len(rows)) == ((), 0, 0)
