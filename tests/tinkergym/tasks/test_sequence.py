import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tinkergym.tasks.forms import HELD_OUT, ROWS
from tinkergym.tasks import (
    GeneratorTasks,
    JsonlTasks,
    SequenceTasks,
    TaskSource,
)


def test_takes_rows_as_tasks_in_order(make):
    tasks = make("train")
    assert isinstance(tasks, TaskSource)
    assert len(tasks) == 10
    assert list(tasks) == ROWS
    assert (tasks[-1], tasks[2:4]) == (ROWS[9], ROWS[2:4])
    with pytest.raises(IndexError):
        tasks[10]
    assert list(make("test")) == HELD_OUT


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=4
)


@given(st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), min_size=1, max_size=8))
def test_restores_any_json_rows_as_they_were_in_order(tmp_path_factory, tasks):
    folder = tmp_path_factory.mktemp("rows")
    text = io.StringIO()
    for task in tasks:
        text.write(json.dumps(task) + "\n")
    (folder / "rows.jsonl").write_text(text.getvalue())
    assert list(JsonlTasks(folder / "rows.jsonl")) == tasks == list(SequenceTasks(tasks))
    assert SequenceTasks(tasks).fingerprint == GeneratorTasks(lambda: tasks, len(tasks)).fingerprint
