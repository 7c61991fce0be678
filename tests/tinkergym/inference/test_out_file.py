import json
import resource
from contextlib import contextmanager

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.errors import ConflictError, InvalidRequestError, StorageFullError
from tinkergym.inference.out_file import OutFile

SETTINGS = {"seed": 7, "data": "q"}


def line(unit, n=2, **more):
    row, sample = divmod(unit, n)
    return {
        "row": row,
        "sample": sample,
        "text": f"é{unit}",
        "prompt_tokens": 3,
        "completion_tokens": 2,
        **more,
    }


def write_all(path, units=10, n=2, **options):
    with OutFile(path, options.pop("settings", SETTINGS), n=n, resume=options.pop("resume", False)) as file:
        start = file.done
        for unit in range(start, units):
            file.write([line(unit, n)])
        file.finish()
        return start


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "out.jsonl"
    write_all(path)
    return path.read_bytes()


@given(st.data())
def test_continues_a_file_cut_at_any_byte(tmp_path_factory, whole, data):
    path = tmp_path_factory.mktemp("cut") / "out.jsonl"
    with OutFile(path, SETTINGS, n=2, resume=False):
        pass
    cut = data.draw(st.integers(0, len(whole)))
    tail = data.draw(st.sampled_from([b"", b"\0" * 9, b'{"row": 1']))
    path.write_bytes(whole[:cut] + (tail if cut < len(whole) else b""))
    start = write_all(path, resume=True)
    assert start == whole[:cut].count(b"\n")
    assert path.read_bytes() == whole


def test_refuses_a_file_that_exists_and_leaves_it(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("mine\n")
    for resume in (False, True):
        with pytest.raises(InvalidRequestError) as caught:
            OutFile(path, SETTINGS, n=1, resume=resume)
        assert caught.value.field == "out"
    assert path.read_text() == "mine\n"


def test_refuses_lines_of_something_else_in_between(tmp_path, whole):
    path = tmp_path / "out.jsonl"
    with OutFile(path, SETTINGS, n=2, resume=False):
        pass
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[4], *lines[5:]]))
    with pytest.raises(InvalidRequestError):
        OutFile(path, SETTINGS, n=2, resume=True)
    assert path.read_bytes().count(b"\n") == 8


def test_refuses_to_continue_with_other_settings(tmp_path):
    path = tmp_path / "out.jsonl"
    write_all(path, 4)
    with pytest.raises(ConflictError):
        OutFile(path, {**SETTINGS, "seed": 8}, n=2, resume=True)


def test_writes_for_one_process_at_a_time(tmp_path):
    path = tmp_path / "out.jsonl"
    with OutFile(path, SETTINGS, n=2, resume=False) as file:
        file.write([line(0)])
        with pytest.raises(ConflictError) as caught:
            OutFile(path, SETTINGS, n=2, resume=True)
    assert caught.value.code == "in_use"


def test_begins_anew_after_its_results_were_deleted(tmp_path):
    path = tmp_path / "out.jsonl"
    write_all(path, 4)
    path.unlink()
    assert write_all(path, 4, settings={"seed": 9}) == 0


def test_makes_parquet_of_a_run_that_was_continued(tmp_path):
    path = tmp_path / "out.parquet"
    with OutFile(path, SETTINGS, n=2, resume=False) as file:
        file.write([line(0, id=1, tags=["a"]), line(1, id=2.5, tags=None, token_ids=[1, 2])])
    assert {one.name for one in tmp_path.iterdir()} == {"out.parquet.part.jsonl", "out.parquet.run.json"}
    assert write_all(path, 4, resume=True) == 2
    rows = pyarrow.parquet.read_table(path).to_pylist()
    assert [row["text"] for row in rows] == ["é0", "é1", "é2", "é3"]
    assert [row["id"] for row in rows] == [1.0, 2.5, None, None]
    assert [row["tags"] for row in rows] == [json.dumps(["a"]), None, None, None]
    assert rows[1]["token_ids"] == [1, 2]
    assert {one.name for one in tmp_path.iterdir()} == {"out.parquet", "out.parquet.run.json"}
    assert write_all(path, 4, resume=True) == 4


@contextmanager
def files_of_at_most(size):
    """Writing beyond this size fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_keeps_what_was_written_before_the_disk_was_full(tmp_path, whole):
    path = tmp_path / "out.jsonl"
    with OutFile(path, SETTINGS, n=2, resume=False) as file:
        with files_of_at_most(300), pytest.raises(StorageFullError):
            for unit in range(10):
                file.write([line(unit)])
        assert 0 < file.done < 10
    write_all(path, resume=True)
    assert path.read_bytes() == whole
