"""Every check of a certificate holds for a clean run, and is seen to fail for a run with bad facts."""

from __future__ import annotations

import pytest

from tests.tinkergym.certificates.made_run import Run
from tinkergym.certificates.checks import checks_of
from tinkergym.schema.certificate import (
    AgreementFacts,
    EventsFacts,
    PublishFacts,
    RunFacts,
    StepFacts,
)
from tinkergym.schema.chat_templates import template_sha256
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.dataset import SFTSpec
from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.jobs.parts import EnvironmentRef, FullParameters
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train
from tinkergym.schema.jobs.view import JobView

QUIZ = "own/Quiz-v0"
RL = RLSpec(environment=EnvironmentRef(id=QUIZ), steps=1, environment_data={QUIZ: "a" * 64})
SFT = SFTSpec(data="b" * 64, steps=1)
CLEAN = Run().facts


def verdict(facts, name):
    return {check.name: check.verdict for check in checks_of(facts)}.get(name)


def changed(name, number, **fields):
    """Return the clean facts with one entry of a list changed."""
    entries = list(getattr(CLEAN, name))
    entries[number] = entries[number].model_copy(update=fields)
    return CLEAN.model_copy(update={name: entries})


def without(name, number):
    entries = list(getattr(CLEAN, name))
    del entries[number]
    return CLEAN.model_copy(update={name: entries})


def of_job(**fields):
    return CLEAN.model_copy(update={"job": CLEAN.job.model_copy(update=fields)})


def again(name, number, **fields):
    """Return the clean facts with an entry there twice, the second time changed."""
    entries = list(getattr(CLEAN, name))
    return CLEAN.model_copy(update={name: [*entries, entries[number].model_copy(update=fields)]})


def test_passes_every_check_of_clean_facts():
    assert {check.verdict for check in checks_of(CLEAN)} == {"holds"}


@pytest.mark.parametrize(
    ("facts", "name", "expected"),
    [
        (without("steps", 0), "run_complete", "fails"),
        (without("steps", 1), "run_complete", "fails"),
        (again("steps", 0), "run_complete", "fails"),
        (of_job(state=JobState.RUNNING), "run_complete", "not_shown"),
        (CLEAN.model_copy(update={"adapters": []}), "adapter_bound", "fails"),
        (
            CLEAN.model_copy(update={"adapters": [], "job": CLEAN.job.model_copy(update={"step": 0})}),
            "adapter_bound",
            "not_shown",
        ),
        (changed("adapters", 0, engine_shift=None, learner_shift=None), "adapter_bound", "not_shown"),
        (changed("adapters", 0, engine_shift=0.0), "adapter_bound", "not_shown"),
        (changed("adapters", 0, engine_shift=2e-7), "adapter_bound", "not_shown"),
        (changed("adapters", 0, agent="another"), "adapter_bound", "fails"),
        (CLEAN.model_copy(update={"publishes": []}), "weights_arrived", "not_shown"),
        (without("publishes", 0), "weights_arrived", "fails"),
        (without("publishes", 1), "weights_arrived", "fails"),
        (without("publishes", 2), "weights_arrived", "fails"),
        (changed("publishes", 2, agent="another"), "weights_arrived", "fails"),
        (changed("agreements", 0, mean=1.1e-3), "engine_and_learner_agree", "fails"),
        (changed("agreements", 2, allowed=1e-8), "engine_and_learner_agree", "fails"),
        (without("agreements", 2), "engine_and_learner_agree", "not_shown"),
        (changed("agreements", 2, attempt=2), "engine_and_learner_agree", "not_shown"),
        (changed("agreements", 2, agent="another"), "engine_and_learner_agree", "not_shown"),
        (CLEAN.model_copy(update={"agreements": []}), "engine_and_learner_agree", "not_shown"),
        (again("publishes", 1, attempt=2, weights_sha256="9" * 64), "one_history", "fails"),
        (again("publishes", 1, attempt=2), "one_history", "holds"),
        (again("publishes", 1, agent="another", weights_sha256="9" * 64), "one_history", "holds"),
        (changed("steps", 0, matched_tokens=3), "trained_tokens_were_sampled", "fails"),
        (changed("steps", 1, matched_tokens=3), "trained_tokens_were_sampled", "fails"),
        (changed("steps", 1, matched_tokens=5), "trained_tokens_were_sampled", "fails"),
        (CLEAN.model_copy(update={"steps": []}), "trained_tokens_were_sampled", "not_shown"),
        (changed("steps", 0, trained=3), "every_episode_accounted_for", "fails"),
        (changed("steps", 1, dropped={"masked": 1}), "every_episode_accounted_for", "fails"),
        (changed("steps", 1, episodes=3, trained=3), "every_episode_accounted_for", "fails"),
        (changed("steps", 1, captured_tokens=5), "every_episode_accounted_for", "fails"),
        (changed("steps", 1, matched_tokens=5), "every_episode_accounted_for", "fails"),
        (
            changed("steps", 1, trained=2, dropped={"masked": 1, "no_turns": 1}),
            "every_episode_accounted_for",
            "holds",
        ),
        (CLEAN.model_copy(update={"steps": []}), "every_episode_accounted_for", "not_shown"),
    ],
)
def test_sees_bad_facts(facts, name, expected):
    assert verdict(facts, name) == expected


def test_cancels_out_no_two_mismatching_tokens():
    steps = [
        CLEAN.steps[0].model_copy(update={"matched_tokens": 3}),
        CLEAN.steps[1].model_copy(update={"matched_tokens": 5}),
    ]
    assert verdict(CLEAN.model_copy(update={"steps": steps}), "trained_tokens_were_sampled") == "fails"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("later_first", [True, False])
def test_loses_no_proof_by_a_kill_before_measurement(version, later_first):
    measured = CLEAN.adapters[0].model_copy(update={"attempt": 2, "version": version})
    killed = CLEAN.adapters[0].model_copy(update={"engine_shift": None, "learner_shift": None, "tokens": 0})
    found = [measured, killed] if later_first else [killed, measured]
    (check,) = [
        one for one in checks_of(CLEAN.model_copy(update={"adapters": found})) if one.name == "adapter_bound"
    ]
    assert check.verdict == "holds"
    assert check.text.startswith(f"version {version} is the first")


def test_proves_nothing_by_effect_no_larger_than_between_attempts():
    agreements = [*CLEAN.agreements, CLEAN.agreements[1].model_copy(update={"attempt": 2, "mean": 5e-4})]
    facts = changed("adapters", 0, engine_shift=4e-4).model_copy(update={"agreements": agreements})
    assert verdict(facts, "adapter_bound") == "not_shown"


@pytest.mark.parametrize(("hashes", "expected"), [(("a", "a"), "not_shown"), (("a", "b"), "holds")])
def test_requires_a_change_of_whole_models(hashes, expected):
    publishes = [
        PublishFacts(version=version, attempt=1, weights_sha256=one * 64)
        for version, one in enumerate(hashes)
    ]
    job = CLEAN.job.model_copy(
        update={"spec": CLEAN.job.spec.model_copy(update={"adapter": FullParameters()}), "step": 1}
    )
    facts = CLEAN.model_copy(update={"job": job, "publishes": publishes, "adapters": []})
    assert verdict(facts, "adapter_bound") == expected


def test_checks_each_policy_of_a_game():
    spec = CLEAN.job.spec.model_copy(update={"agents": {"o": Train(), "x": Train()}})
    both = {
        name: [
            one.model_copy(update={"agent": agent}) for one in getattr(CLEAN, name) for agent in ("o", "x")
        ]
        for name in ("publishes", "agreements", "adapters")
    }
    facts = CLEAN.model_copy(update=both | {"job": CLEAN.job.model_copy(update={"spec": spec})})
    assert verdict(facts, "adapter_bound/o") == verdict(facts, "adapter_bound/x") == "holds"
    lost = {name: [one for one in found if one.agent != "x"] for name, found in both.items()}
    for name, check in (("adapters", "adapter_bound/x"), ("publishes", "weights_arrived")):
        assert verdict(facts.model_copy(update={name: lost[name]}), check) == "fails"
    assert verdict(facts.model_copy(update={"adapters": lost["adapters"]}), "adapter_bound/o") == "holds"
    agreements = facts.model_copy(update={"agreements": lost["agreements"]})
    assert verdict(agreements, "engine_and_learner_agree") == "not_shown"


def facts_of(spec, **changes):
    job = JobView(
        job_id="job-1", spec=spec, state=JobState.COMPLETED, created_at=0.0, updated_at=0.0, attempt=1
    )
    step = StepFacts(step=1, attempt=1, records=3, records_sha256="c" * 64)
    facts = {
        "steps": [step],
        "events": EventsFacts(count=0, head_sha256=""),
        "data": spec.data_hashes,
        **changes,
    }
    return RunFacts(job=job, service_version="0", made_at=0.0, **facts)


def pinned(facts):
    return next((one for one in checks_of(facts) if one.name == "data_pinned"), None)


@pytest.mark.parametrize(("spec", "name"), [(RL, QUIZ), (SFT, "data")])
def test_names_data_of_a_run_with_its_hash(spec, name):
    found = pinned(facts_of(spec))
    assert found.verdict == "holds"
    assert f"{name} {spec.data_hashes[name][:12]}" in found.text


def test_says_nothing_of_data_in_job_without():
    assert pinned(facts_of(RL.model_copy(update={"environment_data": {}}))) is None


def test_hides_data_that_was_not_hashed_in_time():
    assert (
        pinned(facts_of(RL.model_copy(update={"environment_data": {"own/Quiz-v0": ""}}))).verdict
        == "not_shown"
    )


@pytest.mark.parametrize(
    "steps", [[], [StepFacts(step=1, attempt=1, records=3, records_sha256="")]], ids=["none", "unhashed"]
)
def test_shows_no_records_without_a_hash(steps):
    assert pinned(facts_of(SFT, steps=steps)).verdict == "not_shown"


@pytest.mark.parametrize("spec", [RL, SFT])
@pytest.mark.parametrize("data", [{}, {"data": "d" * 64}])
def test_fails_on_hashes_that_are_not_the_jobs(spec, data):
    assert pinned(facts_of(spec, data=data)).verdict == "fails"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, "holds"), ({"template_date": "2026-03-02"}, "fails"), ({"chat_template": "other"}, "fails")],
)
def test_names_template_by_the_hash_of_all_that_it_writes(changes, expected):
    rendered = {"chat_template": "{{ x }}", "template_variables": {"x": 1}, "template_date": "2026-03-01"}
    recorded = {**rendered, "template_sha256": template_sha256(*rendered.values()), **changes}
    assert verdict(facts_of(SFT.model_copy(update=recorded)), "template_pinned") == expected


def test_names_no_template_where_none_was_recorded():
    assert "template_pinned" not in [check.name for check in checks_of(facts_of(SFT))]


@pytest.mark.parametrize(("published", "expected"), [((0, 1), "holds"), ((0,), "fails"), ((1,), "fails")])
def test_counts_last_version_of_completed_dataset_job_as_published(published, expected):
    publishes = [PublishFacts(version=one, attempt=1, weights_sha256=str(one) * 64) for one in published]
    facts = facts_of(SFT, publishes=publishes)
    facts = facts.model_copy(update={"job": facts.job.model_copy(update={"policy_version": 1})})
    assert verdict(facts, "weights_arrived") == expected


def test_judges_own_loops_only_by_what_others_know():
    facts = facts_of(PolicySpec(), steps=[])
    assert verdict(facts, "run_complete") == verdict(facts, "engine_and_learner_agree") == "not_shown"
    assert verdict(facts, "trained_tokens_were_sampled") is None


@pytest.mark.parametrize(
    ("weights", "verdict", "said"),
    [
        # An own loop publishes the untrained policy again before its first batch.
        ({0: "a", 1: "a", 2: "b"}, "holds", "publishes compared: 2 of 3"),
        ({0: "a", 1: "c", 2: "b"}, "not_shown", "not compared: version 0"),
    ],
)
def test_accepts_weights_that_were_compared_under_another_version(weights, verdict, said):
    publishes = [
        PublishFacts(version=version, attempt=1, weights_sha256=sha * 64) for version, sha in weights.items()
    ]
    agreements = [
        AgreementFacts(
            version=version, attempt=1, mean=1e-7, largest=1e-6, tokens=9, by="probe", allowed=1e-4
        )
        for version in (1, 2)
    ]
    checks = checks_of(facts_of(RL, publishes=publishes, agreements=agreements))
    agree = next(one for one in checks if one.name == "engine_and_learner_agree")
    assert agree.verdict == verdict
    assert said in agree.text
