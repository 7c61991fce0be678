"""What a certificate says about the data of a run, and about versions that engine and learner agreed on."""

from __future__ import annotations

import pytest

from tinkergym.certificates.checks import certify
from tinkergym.certificates.verification import verify
from tinkergym.schema.certificate import (
    AgreementFacts,
    EventsFacts,
    PublishFacts,
    RunFacts,
    StepFacts,
    data_of,
)
from tinkergym.schema.events import JobState
from tinkergym.schema.job_spec import EnvironmentRef, JobSpec
from tinkergym.schema.jobs import JobView, SFTSpec

QUIZ = "own/Quiz-v0"
RL = JobSpec(environment=EnvironmentRef(id=QUIZ), steps=1, environment_data={QUIZ: "a" * 64})
SFT = SFTSpec(data="b" * 64, steps=1)


def facts_of(spec, **changes):
    job = JobView(
        job_id="job-1", spec=spec, state=JobState.COMPLETED, created_at=0.0, updated_at=0.0, attempt=1
    )
    step = StepFacts(step=1, attempt=1, records=3, records_sha256="c" * 64)
    facts = {
        "steps": [step],
        "events": EventsFacts(count=0, head_sha256=""),
        "data": data_of(spec),
        **changes,
    }
    return RunFacts(job=job, service_version="0", made_at=0.0, **facts)


def pinned(facts):
    return next((one for one in certify(facts).checks if one.name == "data_pinned"), None)


@pytest.mark.parametrize(("spec", "name"), [(RL, QUIZ), (SFT, "data")])
def test_the_data_of_a_run_is_named_with_its_hash(spec, name, tmp_path):
    found = pinned(facts_of(spec))
    assert found.verdict == "holds"
    assert f"{name} {data_of(spec)[name][:12]}" in found.text
    path = tmp_path / "certificate.json"
    path.write_text(certify(facts_of(spec)).model_dump_json())
    assert verify(path).problems == []


def test_a_job_without_data_says_nothing_of_it():
    assert pinned(facts_of(RL.model_copy(update={"environment_data": {}}))) is None


def test_data_that_was_not_hashed_in_time_is_not_shown():
    assert (
        pinned(facts_of(RL.model_copy(update={"environment_data": {"own/Quiz-v0": ""}}))).verdict
        == "not_shown"
    )


@pytest.mark.parametrize("spec", [RL, SFT])
@pytest.mark.parametrize("data", [{}, {"data": "d" * 64}])
def test_hashes_that_are_not_those_of_the_job_fail(spec, data):
    assert pinned(facts_of(spec, data=data)).verdict == "fails"


@pytest.mark.parametrize(
    ("weights", "verdict", "said"),
    [
        # An own loop publishes the untrained policy again before its first batch.
        ({0: "a", 1: "a", 2: "b"}, "holds", "publishes compared: 2 of 3"),
        ({0: "a", 1: "c", 2: "b"}, "not_shown", "not compared: version 0"),
    ],
)
def test_weights_that_were_compared_under_another_version_count_as_compared(weights, verdict, said):
    publishes = [
        PublishFacts(version=version, attempt=1, weights_sha256=sha * 64) for version, sha in weights.items()
    ]
    agreements = [
        AgreementFacts(
            version=version, attempt=1, mean=1e-7, largest=1e-6, tokens=9, by="probe", allowed=1e-4
        )
        for version in (1, 2)
    ]
    checks = certify(facts_of(RL, publishes=publishes, agreements=agreements)).checks
    agree = next(one for one in checks if one.name == "engine_and_learner_agree")
    assert agree.verdict == verdict
    assert said in agree.text
