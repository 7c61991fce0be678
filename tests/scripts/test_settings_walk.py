"""A job's settings pass few files, and hardly come back to a folder that handed them on."""

import pytest

from scripts.settings_walk import WALKS, classes_asked, counts, walked


@pytest.mark.parametrize(
    ("title", "most"),
    [("from client.train to the loop", (25, 10, 4)), ("inside Admission.check", (15, 8, 3))],
)
def test_takes_settings_through_few_files(title, most):
    walk = walked(WALKS[title])
    assert all(count <= limit for count, limit in zip(counts(walk), most, strict=True)), walk


def test_follows_checks_of_admission():
    files = walked(WALKS["from client.train to the loop"]).files
    assert {"backend/admission/bounds.py", "backend/admission/preflight.py", "backend/jobs/kinds.py"} <= {
        *files
    }


def test_asks_for_class_of_a_spec_in_few_places():
    assert len(classes_asked()) <= 15, classes_asked()
