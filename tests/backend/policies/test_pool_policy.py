"""The handle with which jobs train: two policies of one job, on one learner and one engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sqlalchemy import insert

from backend.compute.weights import weights_sha256
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import likelihood_loss
from backend.policies.early_requests import EarlyRequests
from backend.policies.policy_binding import PolicyBinding, PoolParts
from backend.policies.policy_directory import PolicyDirectory
from backend.policies.pool_policy import PoolPolicy
from backend.settings.served_models import PACKAGED_MODELS
from backend.store.local_blobs import LocalBlobs
from backend.store.store import Store
from backend.store.tables import job_policies, policies
from tinkergym.errors import ConflictError, NotFoundError, ParityError
from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.jobs.parts import LoRA

SEQUENCE = TrainSequence(
    token_ids=[65, 66, 67, 68],
    loss_mask=[False, True, True, True],
    sampling_logprobs=[None, -1.0, -1.0, -1.0],
    advantage=1.0,
)
STEP = {"learning_rate": 1e-2, "max_grad_norm": 1.0, "weight_decay": 0.0}


class Engine:
    """Holds what is published."""

    context_length, busy_seconds = 64, 0.0

    def __init__(self):
        self.held = {}

    def publish(self, policy, version, weights, *, let_finish=False):
        self.held[policy] = (version, weights_sha256(weights))
        return self.held[policy][1]

    def retire(self, policy):
        self.held.pop(policy, None)

    def loaded(self):
        return {policy: version for policy, (version, _) in self.held.items()}


class Place:
    """A pool and a store, in which jobs can be taken up again and again."""

    def __init__(self, folder):
        self.folder, self.now = folder, 0.0
        self.store = Store.open(f"sqlite:///{folder / 'store.sqlite3'}")
        self.store.keys.ensure_tenant("ada")
        self.learner, self.engine = Learner(PACKAGED_MODELS["nano"]), Engine()

    def create(self, **settings):
        return self.store.tenant("ada").create_job(PolicySpec(adapter=LoRA(rank=2), **settings), {}).job_id

    def take(self, job_id):
        """Return the job's policies by agent, as another attempt binds them."""
        self.now += 1000.0
        service = self.store.service()
        lease = service.acquire(job_id, "pool-1", 30.0, self.now)
        pool = PoolParts(
            store=service,
            job_files=LocalBlobs(self.folder),
            engine=self.engine,
            directory=PolicyDirectory(self.engine, model_names=(), find=lambda name: None, keep_idle=1),
            early=EarlyRequests(self.engine),
            open_model=lambda model: None,
        )
        return {
            agent: PoolPolicy(
                PolicyBinding(
                    policy_id=policy_id,
                    agent=agent,
                    lease=lease,
                    files=LocalBlobs(self.folder / job_id),
                    learner=self.learner,
                    pool=pool,
                )
            )
            for agent, policy_id in service.policies_of(job_id).items()
        }


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def learn(policy):
    policy.forward_backward([SEQUENCE], likelihood_loss(aggregation="token"))
    policy.optim_step(**STEP)


def test_names_policy_by_own_id_and_resumes_from_saved_state(place):
    job_id = place.create()
    (policy,) = place.take(job_id).values()
    assert policy.restore() == 0
    learn(policy)
    policy.save(3)
    taken = policy.take_weights()
    policy.publish(3, taken)
    assert place.engine.loaded() == {policy.id: 3}
    learn(policy)
    (again,) = place.take(job_id).values()
    assert again.restore() == 3
    assert again.take_weights().sha256 == taken.sha256
    assert place.learner.policy_ids == [again.id] == [policy.id]


def test_offers_no_version_between_optimizer_step_and_its_end(place):
    (policy,) = place.take(place.create()).values()
    policy.restore()
    policy.forward_backward([SEQUENCE], likelihood_loss(aggregation="token"))
    assert (policy.is_changing, policy.has_gradient()) == (False, True)
    policy.optim_step(**STEP)
    assert (policy.is_changing, policy.has_gradient()) == (True, False)
    policy.step_finished()
    assert not policy.is_changing


@pytest.mark.parametrize("with_optimizer", [True, False])
def test_takes_place_of_policy_by_a_version(place, with_optimizer):
    job_id = place.create()
    (policy,) = place.take(job_id).values()
    policy.restore()
    learn(policy)
    policy.save(1)
    saved = policy.take_weights().sha256
    learn(policy)
    ahead = policy.take_weights().sha256
    policy.load(f"{job_id}@1", with_optimizer=with_optimizer)
    assert policy.take_weights().sha256 == saved
    assert place.learner.policy_ids == [policy.id]
    learn(policy)
    assert (policy.take_weights().sha256 == ahead) == with_optimizer


def test_leaves_policy_as_is_when_a_version_cannot_be_loaded(place):
    other = place.create()
    wider = place.store.tenant("ada").create_job(PolicySpec(adapter=LoRA(rank=3)), {}).job_id
    (policy,), (misfit,) = place.take(other).values(), place.take(wider).values()
    for one in (policy, misfit):
        one.restore()
        learn(one)
    misfit.save(1)
    before = policy.take_weights().sha256
    policy.step_finished()
    for reference, error in ((f"{other}@1", NotFoundError), (f"{wider}@1", ConflictError)):
        with pytest.raises(error):
            policy.load(reference, with_optimizer=True)
    assert policy.take_weights().sha256 == before
    assert not policy.is_changing
    assert sorted(place.learner.policy_ids) == sorted([policy.id, misfit.id])


def test_asks_what_it_began_with_under_another_name(place):
    first = place.create()
    (taught,) = place.take(first).values()
    taught.restore()
    learn(taught)
    taught.save(1)
    (policy,) = place.take(place.create(initial_policy=f"{first}@1")).values()
    policy.restore()
    with policy.beginning() as begun_with:
        assert begun_with.logprobs([SEQUENCE])[0].tolist() == taught.logprobs([SEQUENCE])[0].tolist()
        learn(policy)
        assert begun_with.logprobs([SEQUENCE])[0].tolist() != policy.logprobs([SEQUENCE])[0].tolist()
    policy.forget()
    assert place.learner.policy_ids == [taught.id]


@pytest.mark.parametrize("arrives_as", ["other weights", "nothing"])
def test_notices_weights_that_do_not_arrive(place, monkeypatch, arrives_as):
    (policy,) = place.take(place.create()).values()
    policy.restore()
    taken, publish = policy.take_weights(), Engine.publish

    def published(engine, *arguments, **settings):
        arrived = publish(engine, *arguments, **settings)
        if arrives_as == "nothing":
            engine.retire(policy.id)
        return "0" * 64 if arrives_as == "other weights" else arrived

    monkeypatch.setattr(Engine, "publish", published)
    with pytest.raises(ParityError):
        policy.publish(1, taken)


def test_trains_and_saves_two_policies_of_a_job_apart(place):
    job_id = place.create()
    with place.store._db.write() as connection:
        connection.execute(job_policies.update().values(agent="black"))
        row = {"tenant_id": "ada", "model": "nano", "adapter": '{"kind":"lora","rank":2}', "created_at": 0.0}
        connection.execute(insert(policies).values(policy_id="policy-w", made_by_job=job_id, **row))
        connection.execute(insert(job_policies).values(job_id=job_id, agent="white", policy_id="policy-w"))
    both = SimpleNamespace(**place.take(job_id))
    for policy in (both.black, both.white):
        policy.restore()
    learn(both.black)
    both.black.save(1)
    assert (len(both.black.checkpoints()), both.white.checkpoints()) == (1, [])
    learned, fresh = both.black.take_weights().sha256, both.white.take_weights().sha256
    assert learned != fresh
    again = SimpleNamespace(**place.take(job_id))
    assert (again.black.restore(), again.white.restore()) == (1, 0)
    assert (again.black.take_weights().sha256, again.white.take_weights().sha256) == (learned, fresh)
