"""Which policy and which kept version a reference means."""

from __future__ import annotations

import pytest
from sqlalchemy import insert

from backend.store.job_rows import NO_AGENT
from backend.store.policies import versions_in_use
from backend.store.tables import job_policies, policies
from tinkergym.errors import ConflictError, InvalidRequestError, NotFoundError
from tinkergym.schema.events import CheckpointView
from tinkergym.schema.fixed_players import Frozen, League
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.schema.served_names import Promotion


@pytest.fixture
def ada(store):
    return store.tenant("ada")


@pytest.fixture
def job_id(store, ada, spec):
    """A job with checkpoints; version 7 was published at step 4."""
    job_id = ada.create_job(spec, {}).job_id
    service = store.service()
    lease = service.acquire(job_id, "w", 30, now=0)
    for step, version in ((2, 2), (4, 7)):
        view = CheckpointView(step=step, policy_version=version, path=f"/{step}", sha256="00", files={})
        service.add_checkpoint(lease, view)
    return job_id


@pytest.fixture
def policy_id(ada, job_id):
    return ada.policies_of(job_id)[""]


def used(store, job_id):
    """Return the versions of the job's policy that others need."""
    with store._db.read() as connection:
        return versions_in_use(connection, job_id, NO_AGENT)


def kept(ada, text):
    found = ada.find_policy(PolicyRef.parse(text))
    view = found.checkpoint()
    return found.policy.policy_id, view.policy_version


@pytest.mark.parametrize("chosen", ["", "@latest", "@7", "@step:4"])
def test_treats_job_and_its_policy_as_names_of_one(ada, job_id, policy_id, chosen):
    assert kept(ada, f"{job_id}{chosen}") == kept(ada, f"{policy_id}{chosen}") == (policy_id, 7)


def test_tells_versions_and_train_steps_apart(ada, job_id):
    assert kept(ada, f"{job_id}@step:2")[1] == 2
    with pytest.raises(NotFoundError):
        kept(ada, f"{job_id}@4")
    with pytest.raises(NotFoundError):
        kept(ada, f"{job_id}@step:7")


@pytest.mark.parametrize("chosen", ["@best", "@3", "@step:3"])
def test_rejects_version_that_is_not_kept_and_names_kept_ones(ada, job_id, chosen):
    found = ada.find_policy(PolicyRef.parse(f"{job_id}{chosen}"))
    with pytest.raises(NotFoundError) as caught:
        found.checkpoint(field="teacher")
    assert caught.value.field == "teacher"


def test_answers_for_another_tenants_policy_as_for_none(store, job_id, policy_id):
    said = []
    for text in (job_id, "job-0", policy_id, "policy-0"):
        with pytest.raises(NotFoundError) as caught:
            store.tenant("bob").find_policy(PolicyRef.parse(text), field="initial_policy")
        assert caught.value.field == "initial_policy"
        said.append(str(caught.value).replace(text, "it"))
    assert said[0] == said[1]
    assert said[2] == said[3]


def test_requires_a_name_among_several_policies_of_a_job(store, ada, job_id, policy_id):
    with store._db.write() as connection:
        row = {"tenant_id": "ada", "model": "nano", "adapter": '{"kind":"full"}', "created_at": 0.0}
        connection.execute(insert(policies).values(policy_id="policy-b", made_by_job=job_id, **row))
        connection.execute(job_policies.delete().where(job_policies.c.job_id == job_id))
        for agent, policy in (("black", "policy-b"), ("white", policy_id)):
            connection.execute(insert(job_policies).values(job_id=job_id, agent=agent, policy_id=policy))
    with pytest.raises(InvalidRequestError) as short:
        ada.find_policy(PolicyRef.parse(job_id))
    assert f"{job_id}/black, {job_id}/white" in short.value.hint
    with pytest.raises(NotFoundError):
        ada.find_policy(PolicyRef.parse(f"{job_id}/red"))
    assert kept(ada, f"{job_id}/white@2") == (policy_id, 2)
    assert ada.find_policy(PolicyRef.parse("policy-b")).agent == "black"


def test_names_only_policy_of_a_game_by_its_job_alone(ada, spec):
    agents = {"x": Train(), "o": SharedWith("x")}
    job_id = ada.create_job(
        RLSpec.model_validate(spec.model_copy(update={"agents": agents}).model_dump()), {}
    ).job_id
    found = ada.find_policy(PolicyRef.parse(f"{job_id}@0"))
    assert (found.agent, str(found.ref)) == ("x", f"{job_id}/x@0")


def test_keeps_job_while_another_builds_on_its_policy_by_name(ada, job_id, policy_id, spec):
    ada.create_job(spec.model_copy(update={"initial_policy": f"{policy_id}@7"}), {})
    ada.request_cancel(job_id)
    with pytest.raises(ConflictError):
        ada.delete_job(job_id)


@pytest.mark.parametrize("how", ["initial_policy", "against", "anchor"])
def test_calls_a_version_used_that_an_unfinished_job_names(store, ada, job_id, policy_id, spec, how):
    assert used(store, job_id) == set()
    changes = {
        "initial_policy": {"initial_policy": f"{policy_id}@7"},
        "against": {"agents": {"x": Train(), "o": Frozen(f"{job_id}@7")}},
        "anchor": {"agents": {"x": Train(), "o": League(anchors=[Frozen(f"{policy_id}@7")])}},
    }[how]
    other = ada.create_job(RLSpec.model_validate(spec.model_copy(update=changes).model_dump()), {})
    assert used(store, job_id) == {7}
    ada.request_cancel(other.job_id)
    assert used(store, job_id) == set()


def test_keeps_no_version_for_another_tenants_job(store, job_id, spec):
    store.tenant("bob").create_job(spec.model_copy(update={"initial_policy": f"{job_id}@7"}), {})
    assert used(store, job_id) == set()


def test_keeps_versions_and_jobs_that_names_serve(store, ada, job_id, spec):
    ada.names.promote("support", Promotion(policy=f"{job_id}@2"))
    ada.names.promote("support", Promotion(policy=f"{job_id}@step:4", share=0.1))
    assert used(store, job_id) == {2, 7}
    ended = ada.create_job(spec, {}).job_id
    ada.names.promote("support", Promotion(policy=f"{ended}@0", share=0.2))
    assert used(store, job_id) == {2}
    ada.request_cancel(ended)
    with pytest.raises(ConflictError):
        ada.delete_job(ended)
    ada.names.remove("support")
    assert (ada.names.all(), used(store, job_id)) == ({}, set())
    ada.delete_job(ended)


def test_removes_no_checkpoint_that_a_name_serves_by_then(store, ada, spec):
    job_id, service = ada.create_job(spec, {}).job_id, store.service()
    lease = service.acquire(job_id, "w", 30, now=0)
    view = CheckpointView(step=2, policy_version=1, path="/2", sha256="00", files={})
    service.add_checkpoint(lease, view)
    ada.names.promote("support", Promotion(policy=f"{job_id}@1"))
    assert not service.remove_checkpoint(lease, 2, unused_version=1)
    assert service.checkpoints(job_id) == [view]
    ada.names.remove("support")
    assert service.remove_checkpoint(lease, 2, unused_version=1)
    assert service.checkpoints(job_id) == []


def test_answers_for_names_of_other_tenants_as_for_none(store, ada, job_id):
    ada.names.promote("support", Promotion(policy=f"{job_id}@2"))
    bob = store.tenant("bob")
    assert bob.names.all() == {}
    with pytest.raises(NotFoundError):
        bob.names.remove("support")
    with pytest.raises(NotFoundError):
        bob.names.promote("support", Promotion(policy=f"{job_id}@2"))
    assert set(ada.names.all()) == {"support"}
