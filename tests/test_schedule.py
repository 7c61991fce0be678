"""The order of tests, on stand-ins of pytest's items."""

import json
from pathlib import Path
from types import SimpleNamespace

from tests import schedule
from tests.schedule import Groups, Recorder, group_of, longest_first, shuffled

SHORT, LONG, NEW = "tests/a.py", "tests/b.py", "tests/new.py"
JOURNEYS = ("tests/journeys/one.py", "tests/journeys/two.py")


def items(*files, tests=3, markers=()):
    return [
        SimpleNamespace(nodeid=f"{file}::test_{number}", path=Path(file), keywords=dict.fromkeys(markers, 1))
        for file in files
        for number in range(tests)
    ]


def groups(ordered):
    """Return the groups in their order, and see that each is whole."""
    seen = [group_of(item.nodeid) for item in ordered]
    found = list(dict.fromkeys(seen))
    assert seen == sorted(seen, key=found.index)
    return found


def test_runs_longest_group_first_counting_shared_services_together():
    record = {SHORT: 2, LONG: 5, JOURNEYS[0]: 3, JOURNEYS[1]: 4}
    given = items(SHORT, JOURNEYS[0], LONG, NEW, JOURNEYS[1])
    ordered = longest_first(given, record)
    assert groups(ordered) == ["tests/journeys/", LONG, SHORT, NEW]
    assert [item for item in ordered if item.path == Path(SHORT)] == given[:3]


def test_counts_time_of_full_tests_only_where_they_run():
    record = {SHORT: 2, LONG: 1, f"{LONG} (full)": 50}
    assert groups(longest_first(items(LONG, SHORT), record)) == [SHORT, LONG]
    assert groups(longest_first(items(SHORT, LONG, markers=["full"]), record)) == [LONG, SHORT]


def test_keeps_groups_and_files_whole_in_repeatable_shuffle():
    given = items(SHORT, *JOURNEYS, LONG, NEW)
    orders = {tuple(item.nodeid for item in shuffled(given, seed)) for seed in range(20)}
    assert len(orders) > 10
    for seed in range(20):
        ordered = shuffled(given, seed)
        assert sorted(groups(ordered)) == sorted([SHORT, LONG, NEW, "tests/journeys/"])
        files = [item.path for item in ordered]
        assert files == sorted(files, key=list(dict.fromkeys(files)).index)
        assert ordered == shuffled(given, seed)


def test_gives_groups_to_processes():
    split = Groups._split_scope
    assert split(None, f"{JOURNEYS[0]}::test_a[x::y]") == split(None, f"{JOURNEYS[1]}::test_b")
    assert split(None, f"{SHORT}::test_a[x::y]") == SHORT


def test_renews_record_for_files_that_ran_and_forgets_vanished_ones(tmp_path):
    record = tmp_path / "durations.json"
    record.write_text(json.dumps({"a.py": 9, "b.py": 9, "c.py": 9, "gone.py": 9}))
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).touch()
    recorder = Recorder(tmp_path, record)
    for name, seconds, keywords in (
        ("a.py", 1.4, {}),
        ("a.py", 1.4, {}),
        ("b.py", 0.4, {}),
        ("b.py", 6.1, {"full": 1}),
    ):
        report = SimpleNamespace(nodeid=f"{name}::test", duration=seconds, keywords=keywords)
        recorder.pytest_runtest_logreport(report)
    recorder.pytest_sessionfinish()
    assert schedule.read_record(record) == {"a.py": 2.8, "b.py (full)": 6.1, "c.py": 9}
