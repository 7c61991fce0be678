import csv
import json

import pytest

from tests.tinkergym.reporting.jobs import job_view, point
from tinkergym.reporting import CsvTracker, JsonlTracker
from tinkergym.schema.events import JobState

NAMES = {JsonlTracker: "metrics.jsonl", CsvTracker: "metrics.csv"}
KINDS = pytest.mark.parametrize("kind", list(NAMES))


def file_of(folder, kind):
    return folder / "job-1" / NAMES[kind]


def steps_in(folder, kind):
    text = file_of(folder, kind).read_text()
    if kind is JsonlTracker:
        return [json.loads(line)["step"] for line in text.splitlines()]
    return [int(row["step"]) for row in csv.DictReader(text.splitlines())]


@KINDS
def test_writes_each_step_as_line_on_disk_immediately(tmp_path, kind):
    tracker = kind(tmp_path)
    assert tracker.begin(job_view()) == 0
    for step in (1, 2, 3):
        tracker.report(point(step))
        assert steps_in(tmp_path, kind) == list(range(1, step + 1))
    tracker.end(JobState.COMPLETED)


@KINDS
def test_appends_in_another_process_behind_last_whole_line(tmp_path, kind):
    first = kind(tmp_path)
    first.begin(job_view())
    for step in (1, 2, 3):
        first.report(point(step))
    path = file_of(tmp_path, kind)
    # Killed while it wrote the third.
    path.write_bytes(path.read_bytes()[:-4])
    second = kind(tmp_path)
    assert second.begin(job_view()) == 2
    second.report(point(3))
    second.end(None)
    assert steps_in(tmp_path, kind) == [1, 2, 3]
    assert kind(tmp_path).begin(job_view()) == 3


def test_adds_column_for_a_later_value_and_keeps_earlier_rows(tmp_path):
    for process, values in enumerate([{"loss": 1.0}, {"kl": 0.5}, {"loss": 2.0, "env/a, b": 3.0}]):
        tracker = CsvTracker(tmp_path)
        assert tracker.begin(job_view()) == process
        tracker.report(point(process + 1, **values))
        tracker.end(None)
    rows = list(csv.DictReader(file_of(tmp_path, CsvTracker).read_text().splitlines()))
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert [row["loss"] for row in rows] == ["1.0", "", "2.0"]
    assert [row["kl"] for row in rows] == ["", "0.5", ""]
    assert rows[2]["env/a, b"] == "3.0"


def test_holds_values_by_name_in_jsonl(tmp_path):
    tracker = JsonlTracker(tmp_path)
    tracker.begin(job_view())
    tracker.report(point(1, loss=0.25))
    tracker.end(None)
    line = json.loads(file_of(tmp_path, JsonlTracker).read_text())
    assert line == {"step": 1, "time": 101.0, "reward": 0.1, "loss": 0.25}
