"""References to policies as text."""

from __future__ import annotations

import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.policy_refs import PolicyRef

WRITTEN = {
    "policy-1": PolicyRef(owner="policy-1"),
    "policy-1@40": PolicyRef(owner="policy-1", version=40),
    "job-1@40": PolicyRef(owner="job-1", version=40),
    "job-1/black@40": PolicyRef(owner="job-1", agent="black", version=40),
    "job-1/black": PolicyRef(owner="job-1", agent="black"),
    "job-1@step:40": PolicyRef(owner="job-1", step=40),
    "job-1@latest": PolicyRef(owner="job-1", name="latest"),
    "job-1@best": PolicyRef(owner="job-1", name="best"),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_a_reference_is_read_and_written_again(text):
    assert PolicyRef.parse(text) == WRITTEN[text]
    assert str(WRITTEN[text]) == text


@pytest.mark.parametrize(
    "text",
    [
        *["", "nano", "job-", "job-1@", "job-1@x", "job-1@-1", "job-1@1.5", "job-1@step:", "job-1@step:x"],
        *["job-1@1@2", "job-1/", "job-1/a/b", "policy-1/black", "job-1@40\n", "job-1 @4", f"job-1@{10**18}"],
    ],
)
def test_what_is_no_reference_is_refused_with_the_setting_that_it_stood_in(text):
    with pytest.raises(InvalidRequestError) as caught:
        PolicyRef.parse(text, field="teacher")
    assert caught.value.field == "teacher"


def test_a_version_is_pinned_in_place_of_a_name():
    assert str(PolicyRef.parse("job-1/black@latest").at(7)) == "job-1/black@7"
    assert str(PolicyRef.parse("policy-1@step:3").at(7)) == "policy-1@7"


@pytest.mark.parametrize(
    ("text", "newest"),
    [("job-1", True), ("job-1@latest", True)]
    + [(text, False) for text in ("job-1@best", "job-1@0", "job-1@step:0")],
)
def test_only_a_reference_without_a_number_means_the_newest(text, newest):
    assert PolicyRef.parse(text).is_newest is newest


def test_models_are_told_apart_from_references():
    assert [text for text in ("job-1", "policy-1@3", "nano", "org/job-1") if PolicyRef.is_meant(text)] == [
        "job-1",
        "policy-1@3",
    ]
