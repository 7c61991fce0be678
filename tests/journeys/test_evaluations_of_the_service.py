"""A client without a pack evaluates in its environments: the service plays them, in a process of its own."""

import json

import pytest
from typer.testing import CliRunner

from tests.journeys import packs
from tinkergym.cli.main import app
from tinkergym.errors import (
    InternalServiceError,
    InvalidEnvironmentError,
    InvalidRequestError,
    UnknownEnvironmentError,
)
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.evaluation import EvaluationEpisode
from tinkergym.schema.jobs.parts import EnvironmentRef

pytestmark = pytest.mark.service

AFAR = "afar/Env-v0"


def test_plays_on_the_service_what_this_machine_lacks(client):
    assert AFAR in [one.id for one in client.environments()]
    policy = client.policy("nano", max_turn_tokens=8)
    there = policy.evaluate(AFAR, episodes=6)
    assert [one.seed for one in there.trajectories] == list(range(6))
    names = {}
    exec(packs.AFAR, names)
    here = policy.evaluate(names["Env"], episodes=6)
    # Not the logprobs: their last place depends on who shares a forward.
    tokens = [
        [[segment.token_ids for segment in one.segments] for one in evaluation.trajectories]
        for evaluation in (there, here)
    ]
    assert tokens[0] == tokens[1]
    assert (there.mean, there.stop_reasons) == (here.mean, here.stop_reasons)


def test_evaluates_on_the_service_from_the_command_line(client):
    done = CliRunner().invoke(app, ["eval", AFAR, "--policy", "nano", "--tasks", "3", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["episodes"]) == (0, 3), done.output


@pytest.mark.parametrize(
    ("environment", "kwargs", "kind"),
    [
        ("nowhere/Env-v0", {}, UnknownEnvironmentError),
        (AFAR, {"how": "raises"}, InvalidEnvironmentError),
        pytest.param(
            AFAR, {"how": "dies"}, InternalServiceError, marks=pytest.mark.full("starts one more process")
        ),
    ],
)
def test_says_with_its_type_what_service_cannot_play(client, environment, kwargs, kind):
    with pytest.raises(kind):
        client.policy("nano").evaluate(environment, env_kwargs=kwargs, episodes=2)


def test_connects_service_to_no_server_for_an_evaluation(client):
    policy = client.policy("nano")
    episode = EvaluationEpisode(episode_id="e", seed=0, sampling_seed=0)
    reference = EnvironmentRef(id="tinkergym/Remote-v0", kwargs={"url": "ws://127.0.0.1:1"})
    with pytest.raises(InvalidRequestError) as refused:
        list(policy.play_there(reference, [episode], Decoding(temperature=0.0)))
    assert refused.value.field == "environment"
