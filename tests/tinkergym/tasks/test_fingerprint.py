import hashlib
import pickle
import time

from tests.tinkergym.tasks.forms import generator, hugging_face, sequence
from tinkergym.tasks.fingerprint import KEPT_FROM_BYTES, files_fingerprint, row_hash


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


def test_hashes_large_files_once_per_machine_while_unchanged(tmp_path):
    large, kept_in = tmp_path / "large", tmp_path / "kept"
    with large.open("wb") as file:
        file.truncate(KEPT_FROM_BYTES)
    first = files_fingerprint([large], kept_in=kept_in, now=large.stat().st_mtime)
    assert not kept_in.exists(), "it was only just written"
    later = time.time() + 10
    assert files_fingerprint([large], kept_in=kept_in, now=later) == first
    (kept,) = kept_in.iterdir()
    kept.write_text("0" * 64)
    assert files_fingerprint([large], kept_in=kept_in, now=later) == "0" * 64
    large.touch()
    assert files_fingerprint([large], kept_in=kept_in, now=later) == first
