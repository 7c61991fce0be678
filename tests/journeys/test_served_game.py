"""A game behind an environment server trains the policies of its seats."""

import pytest

import tinkergym as tg
from tests.environment_server import TOKEN, environment_server

pytestmark = pytest.mark.service


def test_trains_both_seats_of_a_game_behind_a_server(client):
    with environment_server("games/Nim-v0", capacity=4) as url:
        job = client.train(
            url,
            env_kwargs={"token": TOKEN},
            steps=1,
            rollout="client",
            agents={"player_0": tg.Train(), "player_1": tg.Train()},
            algorithm=tg.GRPO(group_size=2, groups_per_step=2),
            sampling=tg.Sampling(max_turn_tokens=4),
        )
        job.wait()
    (step,) = job.steps()
    assert step.metrics["seat/player_0/sampled_tokens"] > 0
    assert step.metrics["policy/player_0/trained_tokens"] > 0
