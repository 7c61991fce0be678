"""What a job builds on is its tenant's own, and is written down by one name."""

from __future__ import annotations

import pytest

from backend.admission.origins import origins_are_definite
from backend.config import ServiceConfig
from backend.store.store import Store
from tests.backend.admission.packs import facts
from tests.backend.gateway_lab import SizedCatalog
from tinkergym.errors import NotFoundError
from tinkergym.schema.evaluate_every import EvaluateEvery
from tinkergym.schema.fixed_players import Frozen, League, Replay
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train


@pytest.fixture
def store(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path / 'store.sqlite3'}")
    for tenant in ("ada", "bob"):
        store.keys.ensure_tenant(tenant)
    yield store
    store.close()


def game(**settings):
    defaults = {"environment": EnvironmentRef(id="board/TicTacToe-v0"), "steps": 1}
    return RLSpec(**{**defaults, "agents": {"x": Train(), "o": Train()}, **settings})


def test_recognizes_a_seats_model_by_any_name_of_the_jobs(store):
    job = game(model="nano/", agents={"x": Train(model="nano/"), "o": Train()})
    found = origins_are_definite(job, facts(ServiceConfig(), SizedCatalog(), store.tenant("ada")))
    assert found.model == "nano"
    assert RLSpec.model_validate(found.model_dump()) == found


def settings_that_name(job_id):
    frozen, league = Frozen(job_id), League(anchors=[Frozen(job_id)])
    return {
        "agents.o": {"agents": {"x": Train(), "o": frozen}},
        "agents.o, league": {"agents": {"x": Train(), "o": league}},
        "agents.o, replay": {"agents": {"x": Train(), "o": Replay(job_id)}},
        "agents.o.initial_policy": {"agents": {"x": Train(), "o": Train(initial_policy=job_id)}},
        "self_play": {"self_play": league},
        "evaluate.against": {"evaluate": [EvaluateEvery(5, against=frozen)]},
    }


@pytest.mark.parametrize("where", list(settings_that_name("job-0")))
def test_answers_for_another_tenants_job_as_for_a_missing_one(store, where):
    theirs = store.tenant("bob").create_job(game(), {}).job_id
    said = []
    for job_id in (theirs, "job-0"):
        with pytest.raises(NotFoundError) as caught:
            job = game(**settings_that_name(job_id)[where])
            origins_are_definite(job, facts(ServiceConfig(), SizedCatalog(), store.tenant("ada")))
        assert caught.value.field == where.partition(",")[0]
        said.append(str(caught.value).replace(job_id, "it"))
    assert said[0] == said[1]
