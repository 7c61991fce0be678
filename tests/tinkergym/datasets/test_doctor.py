"""The data doctor: what it finds in files of conversations, comparisons and tasks."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import tinkergym as tg
from tinkergym.agent.renderer import Renderer
from tinkergym.cli.main import app
from tinkergym.errors import InvalidRequestError
from tinkergym.testing.bundles import family_bundle

TALK = {"messages": [{"role": "user", "content": "sky?"}, {"role": "assistant", "content": "blue"}]}
ASKED = {"prompt": "sky?", "completion": "grey", "note": None}


@pytest.fixture(scope="module")
def model():
    return Renderer.from_bundle(family_bundle("llama", context_length=60))


def test_counts_and_shows_what_file_holds(model, tmp_path):
    path = tmp_path / "rows"
    rows = [TALK, ASKED, ASKED, {"prompt": "x " * 99, "completion": "y"}, {"prompt": "x"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    report = tg.datasets.describe(path, model, against=[{**ASKED, "note": None}])
    assert (report.kind, report.container, report.rows) == ("sft", "JSON lines", 5)
    assert report.layouts == {"messages": 1, "prompt and completion": 3}
    assert report.columns["note"] == {"null": 2, "absent": 3}
    assert report.columns["prompt"] == {"text": 4, "absent": 1}
    assert (report.equal_rows, list(report.shared_rows.values())) == (1, [1])
    assert (report.lengths.context, report.lengths.over_context) == (60, 1)
    assert (report.without_beginning, report.doubled_beginning, report.without_end) == (0, 0, 0)
    assert [sample.text.partition("⟦")[2] for sample in report.samples] == [
        "blue<|eot_id|>⟧",
        "grey<|eot_id|>⟧",
    ]
    assert [fault.partition(":")[0] for fault in report.faults] == ["line 5"]
    assert not report.ok
    assert str(report).endswith(f"{len(report.problems)} problems")
    assert tg.datasets.describe([TALK], model).ok


def test_finds_answers_that_no_text_equals():
    rows = [{"question": str(n), "answer": n if n % 3 == 0 else str(n)} for n in range(9)]
    report = tg.datasets.describe(tg.tasks.SequenceTasks(rows))
    assert (report.kind, report.never_equal) == ("tasks", {"answer": 3})
    assert report.columns["answer"] == {"text": 6, "integer": 3}
    assert tg.datasets.describe([{"question": "1", "answer": "1"}]).ok


def test_reads_comparisons_and_finds_missing_beginning(model):
    pair = {
        "chosen": TALK["messages"],
        "rejected": [*TALK["messages"][:1], {"role": "assistant", "content": "red"}],
    }
    report = tg.datasets.describe([pair], model)
    assert (report.kind, report.ok) == ("preference", True)
    bare = family_bundle("llama")
    template = bare.chat_template.replace("{{- bos_token }}", "")
    without = Renderer.from_bundle(bare.model_copy(update={"chat_template": template}))
    doubled = Renderer.from_bundle(
        bare.model_copy(update={"chat_template": "{{- bos_token }}" + bare.chat_template})
    )
    assert tg.datasets.describe([TALK], without).without_beginning == 1
    assert tg.datasets.describe([TALK], doubled).doubled_beginning == 1


def test_prints_report_and_exits_by_problems(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"q": "a", "answer": "1"}\n{"q": "b", "answer": 2}\n')
    done = CliRunner().invoke(app, ["data", "check", str(path), "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["never_equal"] == {"answer": 1}
    path.write_text('{"q": "a", "answer": "1"}\n')
    assert CliRunner().invoke(app, ["data", "check", str(path)]).exit_code == 0
    assert CliRunner().invoke(app, ["data", "check", str(tmp_path / "none")]).exit_code == 2


def test_ignores_nulls_and_columns_for_equal_rows():
    rows = [
        {"q": "a", "label": "x", "meta": {"b": None}, "id": 1},
        {"q": "a", "label": "x", "meta": {}, "id": 2},
    ]
    report = tg.datasets.describe(rows, ignore=["id"])
    assert (report.kind, report.equal_rows) == ("tasks", 1)
    assert tg.datasets.describe([{"q": "a", "note": None}, {"q": "b", "note": "x"}]).ok
    assert tg.datasets.describe([ASKED], tasks=True).kind == "tasks"
    with pytest.raises(InvalidRequestError) as caught:
        tg.datasets.describe(rows, ignore=["none"])
    assert caught.value.field == "ignore"


def test_reads_data_frame_with_missing_values_as_null():
    frame = pytest.importorskip("pandas").DataFrame([{"q": "a", "n": 1.0}, {"q": "b"}])
    assert tg.datasets.describe(frame).columns["n"] == {"number": 1, "null": 1}
