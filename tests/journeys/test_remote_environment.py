"""A job of the real service, whose environment is behind an environment server."""

import pytest

import tinkergym as tg
from tests.environment_server import TOKEN
from tinkergym.errors import AuthenticationError
from tinkergym.schema.events import StepEvent

pytestmark = pytest.mark.service

BOARD = "board/TicTacToeVs-v0"


def test_trains_bit_equal_weights_behind_a_server(client, environment_url):
    small = tg.GRPO(group_size=2, groups_per_step=2)
    hashes = []
    for env, kwargs in ((BOARD, None), (environment_url, {"token": TOKEN})):
        job = client.train(env, env_kwargs=kwargs, steps=1, algorithm=small, seed=5, deterministic=True)
        steps = [event.body for event in job.events() if isinstance(event.body, StepEvent)]
        assert [(step.episodes, step.failed_episodes) for step in steps] == [(4, 0)]
        hashes.append(job.checkpoints()[-1].sha256)
        assert TOKEN not in job.view().model_dump_json()
    assert hashes[0] == hashes[1]
    with pytest.raises(AuthenticationError):
        client.train(environment_url, env_kwargs={"token": "another-token"}, steps=1)
