import pickle

import pytest

import tinkergym as tg
from backend.workers.env_worker_process import environment_maker
from tests.environment_server import TOKEN, environment_server
from tinkergym.errors import AuthenticationError, InvalidRequestError
from tinkergym.schema.jobs.parts import EnvironmentRef

BOARD = "board/TicTacToeVs-v0"


def test_plays_behind_listed_server_with_the_jobs_own_token(monkeypatch):
    monkeypatch.setenv("TINKERGYM_ENV_TOKEN", TOKEN)
    with environment_server(BOARD) as url:
        make = environment_maker([url])
        ref = EnvironmentRef(id="tinkergym/Remote-v0", kwargs={"url": url, "token": TOKEN})
        # As for an environment in a process of its own.
        env = pickle.loads(pickle.dumps(make))(ref)
        assert env.reset(seed=1) == tg.make(BOARD).reset(seed=1)
        env.close()
        # The operator's own variable is not for jobs.
        with pytest.raises(AuthenticationError):
            make(EnvironmentRef(id="tinkergym/Remote-v0", kwargs={"url": url}))
        with pytest.raises(InvalidRequestError, check=lambda error: error.field == "environment.kwargs.url"):
            environment_maker([])(ref)


def test_makes_packs_as_ever():
    assert environment_maker([])(EnvironmentRef(id=BOARD)).reset(seed=1)
