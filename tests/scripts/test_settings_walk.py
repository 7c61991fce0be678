"""A job's settings pass few files, and hardly come back to a folder that handed them on."""

import pytest

from scripts.settings_walk import WALKS, classes_asked, walked


@pytest.mark.parametrize(
    ("title", "most"),
    [("from client.train to the loop", (25, 10, 4)), ("inside Admission.check", (15, 8, 3))],
)
def test_takes_settings_through_few_files(title, most):
    found = walked(WALKS[title])
    assert all(len(names) <= limit for names, limit in zip(found, most, strict=True)), found


def test_follows_settings_through_tables_threads_and_store():
    files, _, _ = walked(WALKS["from client.train to the loop"])
    through = {
        "admission.bounds",
        "admission.preflight",
        "gateway.fair_threads",
        "store.tenant_submissions",
        "jobs.kinds",
    }
    assert {f"backend.{name}" for name in through} <= {*files}


def test_asks_for_class_of_a_spec_in_few_places():
    assert len(classes_asked()) <= 15, classes_asked()
