import pytest

from tinkergym.display.job_table import JobTable, job_rows
from tinkergym.schema.summaries import JobLabels, JobSummary


def brief(**settings):
    usual = {"job_id": "job-1", "name": "", "kind": "rl", "model": "nano", "state": "running", "step": 1}
    numbers = {
        "steps": 3,
        "created_at": 0,
        "updated_at": 0,
        "used_seconds": 62,
        "used_tokens": 0,
        "last_seq": 1,
    }
    return JobSummary(**{**usual, **numbers, **settings})


@pytest.mark.parametrize(
    ("settings", "column", "shown"),
    [
        ({"reward_mean": 0.5}, "reward", "+0.500"),
        ({"loss": 0.25}, "reward", "loss 0.250"),
        ({}, "took", "1 min 02 s"),
        ({"steps": 0}, "step", "-"),
        ({"state": "failed", "error": "it fell\nover"}, "why", "it fell over"),
        ({"labels": JobLabels(tags=["a", "b"])}, "tags", "a b"),
    ],
)
def test_shows_what_matters_of_a_job(settings, column, shown):
    header, row = job_rows([brief(**settings)])
    assert row[header.index(column)] == shown


def test_leaves_out_columns_without_entries():
    header, _ = job_rows([brief(state="completed", step=3, reason="step 3 of 3 is done")])
    assert not {"why", "name", "tags"} & set(header)


def test_makes_a_table_with_a_row_per_job():
    pytest.importorskip("pandas")
    found = JobTable([brief(), brief(job_id="job-2")], has_older=True).to_pandas()
    assert (list(found["job_id"]), list(found["archived"])) == (["job-1", "job-2"], [False, False])
