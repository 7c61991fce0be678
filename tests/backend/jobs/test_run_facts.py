"""What jobs record for their certificates: exactly once, whatever is killed."""

from __future__ import annotations

import pytest

from tinkergym.certificates.checks import checks_of
from tinkergym.certificates.event_log import EventLog
from tinkergym.certificates.fact_consistency import fact_problems
from tinkergym.certificates.log_records import log_problems
from tinkergym.schema.certificate import (
    AdapterFacts,
    AgreementFacts,
    AttemptFacts,
    EventsFacts,
    PublishFacts,
    RunFacts,
    StepFacts,
    StepLedger,
)
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, Sampling
from tinkergym.schema.jobs.seats import SharedWith, Train

KINDS = {
    "attempt": AttemptFacts,
    "publish": PublishFacts,
    "agreement": AgreementFacts,
    "adapter": AdapterFacts,
    "step": StepFacts,
    "ledger": StepLedger,
}


def facts(lab, job_id, kind):
    return [KINDS[kind].model_validate_json(body) for body in lab.tenant.facts(job_id, kind)]


def test_records_each_step_episode_and_version_of_resumed_job_once(lab):
    job_id = lab.start(steps=3, on_failure="drop", environment=EnvironmentRef(id="test/Fickle-v0"))
    for _ in range(2):
        lab.play_step(job_id)
    # Half of the third step is played and acknowledged when the worker dies.
    requests = lab.lease(job_id)
    assert lab.submit(job_id, lab.play(requests[:2])) == ["accepted"] * 2
    lab.replace_pool()
    lab.pool.start_job(job_id)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    steps = facts(lab, job_id, "step")
    assert [one.step for one in steps] == [1, 2, 3]
    assert [one.episodes for one in steps] == [4, 4, 4]
    assert all(one.trained_tokens == one.matched_tokens == one.captured_tokens > 0 for one in steps)
    ledgers = facts(lab, job_id, "ledger")
    known = [fate.episode_id for ledger in ledgers for fate in ledger.episodes]
    assert known == [f"{job_id}:{step}:{index}" for step in (1, 2, 3) for index in range(4)]
    assert all(fate.sha256 for ledger in ledgers for fate in ledger.episodes)
    hashes = {}
    for one in facts(lab, job_id, "publish"):
        hashes.setdefault(one.version, set()).add(one.weights_sha256)
    assert {version: len(found) for version, found in hashes.items()} == dict.fromkeys(range(4), 1)
    agreed = facts(lab, job_id, "agreement")
    assert {one.version for one in agreed} == set(range(4))
    assert all(one.mean <= one.allowed for one in agreed)
    (first, *_) = facts(lab, job_id, "adapter")
    assert (first.version, first.nonzero_tensors) == (1, first.tensors)
    assert first.engine_shift > 100 * next(one.mean for one in agreed if one.version == 1)
    assert [one.attempt for one in facts(lab, job_id, "attempt")] == [1, 2]


def recorded(lab, job_id):
    """Return a job's log and its facts."""
    log = EventLog(job_id)
    for event in lab.tenant.events_after(job_id, 0, 10_000):
        log.add(event.model_dump_json().encode(), None)
    job = lab.tenant.get_job(job_id)
    found = RunFacts(
        job=job,
        service_version="1.0",
        made_at=0.0,
        attempts=facts(lab, job_id, "attempt"),
        publishes=facts(lab, job_id, "publish"),
        agreements=facts(lab, job_id, "agreement"),
        adapters=facts(lab, job_id, "adapter"),
        steps=facts(lab, job_id, "step"),
        checkpoints=lab.tenant.checkpoint_facts(job_id),
        events=EventsFacts(count=log.count, head_sha256=log.head_sha256),
        data=job.spec.data_hashes,
    )
    return log, found


def judged(lab, job_id):
    """Return what contradicts itself in a job's facts and log, and the verdicts of its certificate."""
    log, found = recorded(lab, job_id)
    problems = [*log.problems, *fact_problems(found), *log_problems(found, log)]
    return problems, {check.name: check.verdict for check in checks_of(found)}


# After one step, version 1 is published and its effect not yet measured.
@pytest.mark.parametrize("steps", [1, 2])
def test_certifies_a_job_that_was_killed(lab, steps):
    job_id = lab.start(steps=3)
    for _ in range(steps):
        lab.play_step(job_id)
    lab.until(job_id, lambda: len(lab.events(job_id, "step")) == steps)
    assert (facts(lab, job_id, "adapter")[0].engine_shift is None) == (steps == 1)
    lab.take_over(job_id)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    problems, verdicts = judged(lab, job_id)
    assert (problems, set(verdicts.values())) == ([], {"holds"})


ROWS = [{"prompt": f"{a} and {b}?", "completion": f"{a + b}, I think"} for a in range(4) for b in range(4)]
PAIRS = [{"prompt": f"{a}?", "chosen": f"it is {a}", "rejected": f"no, {a + 1}"} for a in range(8)]


@pytest.mark.parametrize(
    ("kind", "rows"),
    [("sft", ROWS), pytest.param("preference", PAIRS, marks=pytest.mark.full("the loop of both"))],
)
def test_certifies_a_job_on_a_dataset_that_was_killed(lab, written, kind, rows):
    job_id = written.start(kind, rows, steps=20, batch_size=3, checkpoint_every=2)
    lab.until(job_id, lambda: lab.service.job(job_id).step >= 3)
    lab.take_over(job_id)
    lab.until(job_id, lambda: lab.state(job_id).final)
    problems, verdicts = judged(lab, job_id)
    assert (problems, set(verdicts.values())) == ([], {"holds"})
    # The second attempt compares the version that it begins with again, and by other prompts than its step.
    begins_with = min(one.version for one in facts(lab, job_id, "agreement") if one.attempt == 2)
    found = contradicted(lab, job_id)
    assert ((begins_with, 1) in found, (begins_with, 2) in found) == (True, False)


def test_certifies_a_job_that_was_paused(lab):
    job_id = lab.start(steps=3)
    lab.play_step(job_id)
    lab.until(job_id, lambda: len(lab.events(job_id, "step")) == 1)
    lab.tenant.request_pause(job_id)
    lab.until_state(job_id, JobState.PAUSED)
    lab.tenant.request_resume(job_id)
    lab.until(job_id, lambda: lab.start_job(job_id) or lab.service.held_jobs())
    lab.play_on(job_id)
    problems, verdicts = judged(lab, job_id)
    assert (problems, set(verdicts.values())) == ([], {"holds"})
    assert contradicted(lab, job_id) == {(0, 1), (1, 2), (2, 2)}
    # As if another attempt had compared it, or done the step.
    log, found = recorded(lab, job_id)
    for changes in (
        {"agreements": [found.agreements[0].model_copy(update={"attempt": 2, "mean": 0.0})]},
        {"steps": [found.steps[0].model_copy(update={"attempt": 2}), *found.steps[1:]]},
    ):
        assert list(log_problems(found.model_copy(update=changes), log))


def contradicted(lab, job_id):
    """Return the versions and attempts whose comparison the log contradicts as soon as it is another."""
    log, found = recorded(lab, job_id)
    versions = set()
    for number, one in enumerate(found.agreements):
        other = one.model_copy(update={"mean": one.mean + 1e-9, "largest": one.largest + 1e-9})
        changed = [*found.agreements[:number], other, *found.agreements[number + 1 :]]
        if list(log_problems(found.model_copy(update={"agreements": changed}), log)):
            versions.add((one.version, one.attempt))
    return versions


def test_finds_a_comparison_that_its_step_did_otherwise(lab):
    job_id = lab.start(steps=2)
    lab.play_on(job_id)
    # The last version plays no episodes, so no step compares it.
    assert contradicted(lab, job_id) == {(0, 1), (1, 1)}


def test_repeats_steps_that_teach_nothing_after_a_kill(lab):
    environment = EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 1.0})
    job_id = lab.start(steps=3, environment=environment, max_failed_fraction=1.0)
    for _ in range(2):
        lab.play_step(job_id)
    lab.until(job_id, lambda: len(lab.events(job_id, "step")) == 2)
    lab.take_over(job_id)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    problems, verdicts = judged(lab, job_id)
    assert (problems, verdicts["engine_and_learner_agree"]) == ([], "holds")


def test_tells_apart_episode_that_failed_or_was_leased_twice(lab):
    job_id = lab.start(
        steps=1,
        environment=EnvironmentRef(id="test/Fickle-v0", kwargs={"failing": 1.0}),
        max_failed_fraction=1.0,
    )
    lab.lease(job_id, worker_id="gone")
    lab.pool.routes.vanished("gone", job_id)
    lab.play_on(job_id)
    (step,) = facts(lab, job_id, "step")
    assert (step.episodes, step.trained, step.dropped) == (4, 0, {"environment_error": 4})
    assert step.issued_again == 4
    # Nothing was learned from; learner and engine were compared all the same.
    assert {one.version for one in facts(lab, job_id, "agreement")} == {0, 1}


def test_warns_of_tokens_that_the_engine_did_not_return(lab):
    job_id = lab.start(steps=1, parity_threshold=1e3)
    results = lab.play(lab.lease(job_id))
    trajectory = results[0].trajectory
    segment, turn = trajectory.segments[0], trajectory.turns[0]
    ids = [*segment.token_ids]
    ids[turn.start] = (ids[turn.start] + 1) % 200
    other = trajectory.model_copy(update={"segments": [segment.model_copy(update={"token_ids": ids})]})
    results[0] = results[0].model_copy(update={"trajectories": [other]})
    lab.submit(job_id, results)
    lab.until(job_id, lambda: lab.state(job_id).final)
    assert lab.state(job_id) is JobState.COMPLETED
    (step,) = facts(lab, job_id, "step")
    assert 0 < step.matched_tokens < step.trained_tokens
    (warning,) = [one for one in lab.events(job_id, "warning") if one.name == "tokens_not_sampled"]
    assert warning.count == step.trained_tokens - step.matched_tokens


@pytest.mark.parametrize("shared", [False, True])
def test_records_each_policy_of_a_game(lab, shared):
    seats = {"o": Train(), "x": SharedWith(agent="o") if shared else Train()}
    job_id = lab.start(
        steps=1,
        environment=EnvironmentRef(id="board/TicTacToe-v0", kwargs={"on_illegal": "random"}),
        sampling=Sampling(max_turn_tokens=4, temperature=3.0),
        agents=seats,
    )
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    (step,) = facts(lab, job_id, "step")
    assert step.trained_tokens == step.matched_tokens == step.sampled_tokens > 0
    trained = {"o"} if shared else {"o", "x"}
    for kind in ("publish", "agreement"):
        assert {(one.agent, one.version) for one in facts(lab, job_id, kind)} == {
            (agent, version) for agent in trained for version in (0, 1)
        }


def test_records_publishes_of_policy_in_own_loop(lab):
    job_id = lab.tenant.create_job(policy_spec(), {}).job_id
    lab.pool.start_job(job_id)
    lab.until_state(job_id, JobState.RUNNING)
    (published,) = facts(lab, job_id, "publish")
    assert published.version == 0
    lab.tenant.request_cancel(job_id)


def policy_spec():
    from tinkergym.schema.jobs.own_loop import PolicySpec

    return PolicySpec()
