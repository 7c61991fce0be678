import hashlib
import pickle

from tests.tinkergym.tasks.forms import generator, hugging_face, sequence
from tinkergym.tasks.fingerprint import row_hash


def test_fingerprints_equal_content_alike_and_other_content_differently(make, tmp_path):
    first, again, other = make("train"), make("train"), make("test")
    assert first.fingerprint == again.fingerprint == pickle.loads(pickle.dumps(first)).fingerprint
    assert len({first.fingerprint, other.fingerprint, hashlib.sha256(b"").hexdigest()}) == 3


def test_fingerprints_rows_alike_wherever_they_are_kept(tmp_path):
    forms = [form(tmp_path)("train").fingerprint for form in (hugging_face, sequence, generator)]
    assert len(set(forms)) == 1


def test_hashes_rows_alike_with_and_without_nulls():
    assert row_hash({"meta": {"a": 1}}) == row_hash({"meta": {"a": 1, "b": None}, "c": None})
    assert row_hash({"a": [None]}) != row_hash({"a": []})
