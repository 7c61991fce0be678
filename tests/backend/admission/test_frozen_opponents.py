import pytest

from backend.admission.frozen_opponents import with_definite_opponents
from backend.store.store import Store
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.fixed_players import Replay
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train


@pytest.fixture
def ada(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path / 'store.sqlite3'}")
    store.keys.ensure_tenant("ada")
    yield store.tenant("ada")
    store.close()


def game(key, agents, **kwargs):
    judge = {"url": "https://judge.example/v1", "model": "small", "api_key": key}
    ref = EnvironmentRef(id="tabletop/Negotiation-v0", kwargs={**kwargs, "judge": judge})
    return RLSpec(environment=ref, steps=5, agents=agents)


def test_compares_replay_without_keys_of_judges_and_shows_none(ada):
    theirs = ada.create_job(game("stored:abc", {"a": Train(), "b": Train()}), {}).job_id
    agents = {"a": Train(), "b": Replay(theirs)}
    for kwargs, code in (({"rounds": 2}, "other_games"), ({}, "too_few_steps")):
        with pytest.raises(InvalidRequestError) as caught:
            with_definite_opponents(ada, game("sk-very-secret", agents, **kwargs))
        assert caught.value.code == code
        assert "sk-very-secret" not in str(caught.value)


def test_replays_no_seat_with_tools_since_calls_are_no_moves(ada):
    theirs = ada.create_job(
        game("stored:abc", {"a": Train(tools=["tinkergym.tools:run_python"]), "b": Train()}), {}
    ).job_id
    for agent, code in (("a", "has_tools"), ("b", "too_few_steps")):
        agents = {"a": Train(), "b": Train()} | {agent: Replay(theirs)}
        with pytest.raises(InvalidRequestError) as caught:
            with_definite_opponents(ada, game("stored:abc", agents))
        assert (caught.value.code, caught.value.field) == (code, f"agents.{agent}")
