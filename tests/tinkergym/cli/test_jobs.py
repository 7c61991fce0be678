import json
import re

import pytest

from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import Budget

BOARD = "board/TicTacToeVs-v0"


def test_keeps_job_on_one_line_however_narrow_the_terminal(run, service, unplayed, monkeypatch):
    long = "a model that plays as well as the best of them, once it has been trained for long enough"
    unplayed(steps=9, name=long)
    monkeypatch.setenv("COLUMNS", "20")
    header, line = run("jobs").output.splitlines()
    assert re.search(rf"^job-1 +running +0/9 +- +\S+( s)? +{BOARD} +nano +..-.. ..:.. +{long}$", line)
    assert line.index(BOARD) == header.index("environment")


def test_lists_shows_and_cancels_jobs(run, service, unplayed):
    assert "no jobs yet" in run("jobs").output
    unplayed(steps=9, name="first [try]")
    listed = run("jobs").output
    assert re.search(r"job-1 +running +0/9 .*board/TicTacToeVs-v0 +nano .*first \[try\]", listed)
    assert '"group_size": 8' in run("jobs", "show", "job-1", "--json").output
    assert "environment.id" in run("jobs", "show", "job-1").output
    assert "will end" in run("jobs", "cancel", "job-1").output
    assert "has ended (cancelled)" in run("jobs", "cancel", "job-1").output
    missing = run("jobs", "show", "job-9")
    assert (missing.exit_code, "there is no job 'job-9'" in missing.output) == (2, True)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (JobState.WAITING_FOR_CLIENT, "has ended (cancelled)"),
        (JobState.RUNNING, "after its current work (running)"),
    ],
)
def test_says_when_a_cancelled_job_ends(run, service, unplayed, state, said):
    unplayed(steps=9)
    service.jobs.end("job-1", state)
    result = run("jobs", "cancel", "job-1")
    assert (result.exit_code, said in result.output) == (0, True), result.output


def test_changes_one_bound_of_a_budget_and_keeps_the_other(run, service, unplayed):
    unplayed(steps=9, budget=Budget(hours=2, tokens=1000))
    assert run("jobs", "update", "job-1", "--set", "budget.hours=4").exit_code == 0
    budget = service.jobs.get("job-1").view.spec.budget
    assert (budget.hours, budget.tokens) == (4, 1000)
    removed = run("jobs", "update", "job-1", "--set", "budget.tokens=null")
    assert service.jobs.get("job-1").view.spec.budget.tokens is None
    # Only this change is printed, not those before it.
    assert removed.output.splitlines() == ["at once: budget 4.0 hours and 1000 tokens -> 4.0 hours"]
    refused = run("jobs", "update", "job-1", "--set", "budget.hours=[1]")
    assert (refused.exit_code, "budget.hours: " in refused.output) == (2, True), refused.output
    again = run("jobs", "update", "job-1", "--set", "budget.hours=4")
    assert again.output.splitlines() == ["nothing changed: the job has these settings"]
    assert run("jobs", "update", "job-1", "--set", "budget.hours=null").exit_code == 0
    assert service.jobs.get("job-1").view.spec.budget is None


def test_says_that_a_list_of_jobs_goes_on(run, service):
    for _ in range(3):
        run("train", BOARD, "--steps", "1")
    cut = run("jobs", "--limit", "2").output.splitlines()
    assert [line.split()[0] for line in cut[1:3]] == ["job-3", "job-2"]
    assert cut[3:] == ["older ones: tinkergym jobs --limit 4"]
    assert "older ones" not in run("jobs", "--limit", "3").output
    assert run("jobs", "list", "--limit", "2").output.splitlines() == cut


def test_deletes_ended_jobs_after_a_question(run, service, unplayed):
    service.jobs.files = {"a": bytes(2**20)}
    for _ in range(3):
        run("train", BOARD, "--steps", "1")
    unplayed(steps=9)
    assert run("jobs", "delete", "job-1", typed="n\n").exit_code == 1
    assert "job-1 " in run("jobs").output
    assert "job-1 is deleted (1.0 MiB)" in run("jobs", "delete", "job-1", typed="y\n").output
    gone = run("jobs", "delete", "--yes", "job-2", "job-3", "job-2")
    assert (gone.exit_code, "job-3 is deleted" in gone.output) == (0, True)
    refused = run("jobs", "delete", "--yes", "job-4")
    assert (refused.exit_code, "job-4 is running" in refused.output) == (1, True)
    assert re.findall(r"^job-\d", run("jobs").output, re.MULTILINE) == ["job-4"]


def test_lists_checkpoints(run, service, unplayed):
    unplayed(steps=1)
    assert "no checkpoints yet" in run("jobs", "checkpoints", "job-1").output
    service.jobs.files = {"a": bytes(2**20)}
    run("train", BOARD, "--steps", "1")
    assert "step 1  1.0 MiB  /" in run("jobs", "checkpoints", "job-2").output


def test_finds_labels_and_shows_job_by_name(run, service, unplayed):
    unplayed(steps=9, name="first")
    unplayed(steps=9, name="second", seed=7)
    assert run("jobs", "label", "second", "--tag", "sweep").exit_code == 0
    for found in (["--search", "SWEEP"], ["--name", "sec"], ["--tag", "sweep"], ["list", "--tag", "sweep"]):
        assert re.findall(r"^job-\d", run("jobs", *found).output, re.MULTILINE) == ["job-2"]
    page = run("jobs", "show", "second").output
    assert re.search(r"^  seed +7$", page, re.MULTILINE)
    run("jobs", "label", "first", "--archive")
    assert re.findall(r"^job-\d", run("jobs").output, re.MULTILINE) == ["job-2"]
    unplayed(steps=9, name="first")
    refused = run("jobs", "show", "first")
    assert (refused.exit_code, "job-1" in refused.output, "job-3" in refused.output) == (2, True, True)


def test_compares_jobs_and_writes_pages_of_them(run, service, tmp_path):
    for seed in (1, 2):
        run("train", BOARD, "--steps", "3", "--seed", str(seed), "--name", f"seed {seed}")
    compared = run("jobs", "compare", "seed 1", "job-2", "--png", str(tmp_path / "a.png"))
    assert re.search(r"^seed +1 +2$", compared.output, re.MULTILINE), compared.output
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(run("jobs", "compare", "job-1", "job-2", "--json").output)["settings"] == {
        "seed": ["1", "2"]
    }
    assert run("jobs", "compare", "job-1", "job-1").exit_code == 2
    assert run("jobs", "page", "job-1", str(tmp_path / "run")).exit_code == 0
    assert "script" not in (tmp_path / "run" / "index.html").read_text()
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 4
