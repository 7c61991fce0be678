from __future__ import annotations

import json
import re
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tinkergym as tg
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.uploaded_data import DataChunk
from tinkergym.tasks.jsonl import MOST_LINE_BYTES
from tinkergym.testing.bundles import family_bundle

TALK = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three?"},
        {"role": "assistant", "content": "four"},
    ]
}


SYSTEM, QUESTION, ANSWER = TALK["messages"][:3]


ASKED = {"prompt": "sky?", "completion": "blue"}


PAIR = {"prompt": "sky?", "chosen": "blue", "rejected": "red"}


@pytest.fixture(scope="module")
def renderer():
    return Renderer.from_bundle(family_bundle("qwen"))


def records(prepared):
    return [
        record
        for name in prepared.manifest.chunks
        for record in DataChunk.model_validate_json(prepared.bodies[name]).records
    ]


def tokens_of(renderer, *rows, kind="sft", **options):
    return records(prepare(tg.tasks.SequenceTasks(list(rows)), renderer, kind=kind, **options))


def fault(renderer, row, kind="sft", **options):
    with pytest.raises(InvalidRequestError) as caught:
        tokens_of(renderer, row, kind=kind, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"messages": []}, "messages: must be a list of messages, not an empty list"),
        ({"messages": [QUESTION]}, "no message is from the assistant"),
        ({"messages": [{"role": "judge", "content": "x"}]}, "messages[0]: the role must be one of"),
        ({"messages": [{**QUESTION, "weight": 1}]}, "messages[0].weight: only for messages of the assistant"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "lone surrogates"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0]: the content must be a str"),
        ({"messages": [ANSWER]}, "messages[0].role: an answer cannot follow nothing"),
        ({"messages": [QUESTION, ANSWER, ANSWER]}, "messages[2].role: an answer cannot follow assistant"),
        ({"messages": [QUESTION, SYSTEM, ANSWER]}, "messages[1].role: a system message must come first"),
        ({"messages": [QUESTION, ANSWER], "id": 3}, "'id': unknown key besides messages"),
        ({"prompt": "x"}, "completion: missing; the row has 'prompt'"),
        ({"prompt": "x", "answer": "y"}, "completion: missing; the row has 'answer', 'prompt'"),
        ({"prompt": "x", "chosen": "y", "rejected": "z"}, "are for client.preference, tinkergym preference"),
        (
            {"prompt": "x", "completion": ""},
            "completion: empty, so the policy would learn to say nothing",
        ),
        ({"messages": [QUESTION, {**ANSWER, "content": ""}]}, "messages[1].content: empty"),
        (
            {"question": "x", "reply": "y"},
            "row: needs messages, or prompt and completion; it has 'question', 'reply'",
        ),
        ({"prompt": "x", "completion": ["y"]}, "completion[0]: a message must be a dict"),
        ({"prompt": "x", "completion": {"a": 1}}, "completion: must be a string or one assistant message"),
        (
            {"prompt": "x", "completion": "yes<|im_end|>no"},
            "messages[1].content: contains the text of a token",
        ),
    ],
)
def test_rejects_bad_row_by_place_field_and_reason(renderer, row, text):
    said = fault(renderer, row)
    assert "task 0: " in said
    assert text in said


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({**PAIR, "rejected": "blue"}, "rejected: the same as chosen"),
        ({"prompt": "x", "chosen": "y"}, "rejected: missing"),
        ({**PAIR, "score": 1}, "'score': unknown key"),
        ({"prompt": "x", "completion": "y"}, "one answer is for client.sft, tinkergym sft"),
        (
            {"messages": TALK["messages"], "chosen": "a", "rejected": "b"},
            "the last message must not be the assistant's",
        ),
        ({**PAIR, "chosen": [{"role": "user", "content": "x"}]}, "chosen[0].role"),
    ],
)
def test_rejects_bad_comparison_by_field_and_reason(renderer, row, text):
    assert text in fault(renderer, row, kind="preference")


def test_names_line_that_breaks_off_by_one_line_and_column(renderer, tmp_path):
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps(ASKED) + '\n{"prompt": "x",\n', encoding="utf-8")
    for read in (lambda: prepare(file, renderer, kind="sft"), lambda: tg.tasks.JsonlTasks(file).read(1)):
        with pytest.raises(InvalidRequestError, match=r"(line 2|task 1).* valid JSON: .* at column 16$"):
            read()


def test_names_lines_of_file_as_an_editor_does(renderer, tmp_path):
    file = tmp_path / "chats.jsonl"
    unreadable = {"prompt": 1, "completion": "x"}
    lines = [json.dumps(ASKED), "", "{broken", json.dumps(unreadable), '{"a": NaN}', "[1]"]
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InvalidRequestError) as caught:
        prepare(file, renderer, kind="sft")
    assert re.findall(r"line \d", str(caught.value)) == ["line 3", "line 4", "line 5", "line 6"]
    file.write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(InvalidRequestError) as caught:
        prepare(file, renderer, kind="sft")
    assert caught.value.field == "data"
    file.write_text("\n\n")
    with pytest.raises(InvalidRequestError) as caught:
        prepare(file, renderer, kind="sft")
    assert caught.value.field == "data"
    with pytest.raises(InvalidRequestError) as caught:
        prepare(tmp_path / "nowhere.jsonl", renderer, kind="sft")
    assert caught.value.field == "data"
    with pytest.raises(InvalidRequestError) as caught:
        prepare("a\0b", renderer, kind="sft")
    assert caught.value.field == "data"
    with pytest.raises(InvalidRequestError) as caught:
        prepare({1}, renderer, kind="sft")
    assert caught.value.field == "data"


class Nested(tg.tasks.TaskSource):
    """One row with tools that are nested more deeply than Python can write as JSON."""

    name, fingerprint = "nested", "0"

    def __len__(self):
        return 1

    def read(self, index):
        parameters = {}
        for _ in range(2000):
            parameters = {"items": parameters}
        return {**ASKED, "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]}


def test_rejects_row_that_is_nested_too_deeply(renderer):
    with pytest.raises(InvalidRequestError) as caught:
        prepare(Nested(), renderer, kind="sft")
    assert caught.value.field == "data"


def test_reads_only_allowed_part_of_a_line_without_end(renderer, tmp_path):
    file = tmp_path / "chats.jsonl"
    with file.open("wb") as opened:
        opened.write(json.dumps(ASKED).encode() + b"\n")
        opened.truncate(8 * MOST_LINE_BYTES)
    for read in (
        lambda: prepare(file, renderer, kind="sft"),
        lambda: len(tg.tasks.JsonlTasks(file)),
    ):
        tracemalloc.start()
        with pytest.raises(InvalidRequestError, check=lambda error: error.field in ("data", "path")):
            read()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 4 * MOST_LINE_BYTES


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\0",
        '{"prompt": "q"}'.encode("utf-16-le"),
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        b"Prompt,Completion\nq,a\n",
        b"<!DOCTYPE html>",
        b'{\n  "prompt": "q",\n  "completion": "a"\n}\n',
    ],
)
def test_refuses_what_is_no_data_before_reading_lines(renderer, tmp_path, content):
    (tmp_path / "rows").write_bytes(content)
    with pytest.raises(InvalidRequestError) as refused:
        prepare(tmp_path / "rows", renderer, kind="sft")
    assert refused.value.field == "data"


def test_reads_folder_of_a_hub_repository_and_index_of_pandas(renderer, tmp_path):
    rows = [{"prompt": "q", "completion": text} for text in "ab"]
    (tmp_path / "data").mkdir()
    for shard, row in enumerate(rows):
        table = pa.Table.from_pylist([{**row, "__index_level_0__": shard}])
        pq.write_table(table, tmp_path / "data" / f"train-0000{shard}-of-00002.parquet")
    (tmp_path / "README.md").write_text("a card")
    assert records(prepare(tmp_path, renderer, kind="sft")) == tokens_of(renderer, *rows)


def test_finds_nothing_right_with_empty_data_and_with_values(tmp_path):
    for content in ("", "[]", "1\n", "[1]"):
        (tmp_path / "rows").write_text(content)
        assert not tg.datasets.describe(tmp_path / "rows").ok
