import pytest

from backend.store.policies import references_of
from tinkergym.errors import NotFoundError
from tinkergym.schema.events import CheckpointView, JobState
from tinkergym.schema.fixed_players import Frozen, League, Replay
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.dataset import SFTSpec
from tinkergym.schema.jobs.distillation import DistillationSpec
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train


@pytest.fixture
def ada(store):
    return store.tenant("ada")


@pytest.fixture
def job(ada, spec):
    return ada.create_job(spec, {}, "key")


def found(tenant, policy_id):
    return tenant.find_policy(PolicyRef.parse(policy_id)).policy


def test_creates_job_with_the_policy_that_it_trains(ada, job, spec):
    (policy_id,) = ada.policies_of(job.job_id).values()
    policy = found(ada, policy_id)
    assert (policy.model, policy.adapter, policy.made_by_job) == (spec.model, spec.adapter, job.job_id)


def test_creates_no_second_policy_for_a_repeated_request(ada, job, spec):
    policies = ada.policies_of(job.job_id)
    assert ada.policies_of(ada.create_job(spec, {}, "key").job_id) == policies


def test_trains_two_policies_by_two_jobs(ada, job, spec):
    other = ada.create_job(spec, {})
    assert set(ada.policies_of(other.job_id).values()).isdisjoint(ada.policies_of(job.job_id).values())


def test_answers_for_another_tenants_policy_as_for_missing_one(store, ada, job):
    (policy_id,) = ada.policies_of(job.job_id).values()
    with pytest.raises(NotFoundError) as theirs:
        found(store.tenant("bob"), policy_id)
    with pytest.raises(NotFoundError) as missing:
        found(store.tenant("bob"), "policy-0")
    assert str(theirs.value.to_wire()).replace(policy_id, "policy-0") == str(missing.value.to_wire())


def test_deletes_policy_and_checkpoints_with_the_job(store, ada, job):
    (policy_id,) = ada.policies_of(job.job_id).values()
    lease = store.service().acquire(job.job_id, "w", 30, now=0)
    view = CheckpointView(step=1, policy_version=1, path="/x", sha256="00", files={})
    store.service().add_checkpoint(lease, view)
    assert ada.checkpoints(job.job_id) == [view]
    store.service().set_state(lease, JobState.CANCELLED)
    ada.delete_job(job.job_id)
    assert store.service().checkpoints(job.job_id) == []
    with pytest.raises(NotFoundError):
        found(ada, policy_id)


GAME = {"environment": EnvironmentRef(id="board/TicTacToe-v0"), "steps": 1}


def named(spec):
    return {str(ref) for ref in references_of(spec)}


def test_builds_on_what_a_job_begins_with():
    assert named(SFTSpec(data="ab" * 32, steps=1, initial_policy="job-1@3")) == {"job-1@3"}
    assert named(SFTSpec(data="ab" * 32, steps=1)) == set()


def test_builds_student_on_teacher_if_that_was_trained():
    student = {"environment": EnvironmentRef(id="x"), "steps": 1}
    assert named(DistillationSpec(**student, teacher="job-2@7")) == {"job-2@7"}
    assert named(DistillationSpec(**student, teacher="nano-instruct")) == set()


def test_builds_game_on_its_opponents_and_beginnings_of_its_seats():
    agents = {
        "x": Train(initial_policy="job-1/x@2"),
        "o": League(anchors=[Frozen("job-3@4")], anchor_share=0.5),
    }
    assert named(RLSpec(**GAME, agents=agents)) == {"job-1/x@2", "job-3@4"}


def test_builds_on_a_job_that_is_repeated():
    spec = RLSpec(**GAME, agents={"x": Train(), "o": Replay("job-5")})
    assert named(spec) == {"job-5"}
