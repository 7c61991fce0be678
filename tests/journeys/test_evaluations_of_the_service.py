"""A client without a pack evaluates in its environments: the service plays them, in a process of its own."""

import json
import os
import sys

import pytest
from typer.testing import CliRunner

from tinkergym.cli.local_service import local_service
from tinkergym.cli.main import app
from tinkergym.errors import (
    InternalServiceError,
    InvalidEnvironmentError,
    InvalidRequestError,
    UnknownEnvironmentError,
)
from tinkergym.schema.evaluation import EvaluationEpisode
from tinkergym.schema.job_spec import EnvironmentRef
from tinkergym.schema.sampling import Cut

pytestmark = pytest.mark.service

PACK = """
import os, sys
import tinkergym as tg

class Env(tg.SingleTurnEnv):
    system_prompt = "Say something."
    def __init__(self, how="well"):
        print("made")
        if how == "raises":
            raise RuntimeError("no licence")
        self.how = how
    def ask(self, options):
        return f"{self.np_random.integers(100)}?"
    def score(self, answer):
        if self.how == "dies":
            os._exit(3)
        return len(answer) / 64
"""
AFAR = "afar/Env-v0"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A service with a pack that this process does not have."""
    folder = tmp_path_factory.mktemp("pack")
    (folder / "afar_pack.py").write_text(PACK)
    info = folder / "tinkergym_afar-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tinkergym-afar\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[tinkergym.envs]\n{AFAR} = afar_pack:Env\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKERGYM_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, sys.path)]))
        for name in ("TINKERGYM_URL", "TINKERGYM_API_KEY"):
            patch.delenv(name, raising=False)
        with local_service(announce=lambda line: None):
            yield


def test_the_service_plays_what_this_machine_lacks_and_gets_the_episodes_that_would_be_played_here(client):
    assert AFAR in [one.id for one in client.environments()]
    policy = client.policy("nano", max_turn_tokens=8)
    there = policy.evaluate(AFAR, episodes=6)
    assert [one.seed for one in there.trajectories] == list(range(6))
    names = {}
    exec(PACK, names)
    here = policy.evaluate(names["Env"], episodes=6)
    # Not the logprobs: their last place depends on who shares a forward.
    tokens = [
        [[segment.token_ids for segment in one.segments] for one in evaluation.trajectories]
        for evaluation in (there, here)
    ]
    assert tokens[0] == tokens[1]
    assert (there.mean, there.stop_reasons) == (here.mean, here.stop_reasons)


def test_the_command_evaluates_there_too(client):
    done = CliRunner().invoke(app, ["eval", AFAR, "--policy", "nano", "--tasks", "3", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["episodes"]) == (0, 3), done.output


@pytest.mark.parametrize(
    ("environment", "kwargs", "kind"),
    [
        ("nowhere/Env-v0", {}, UnknownEnvironmentError),
        (AFAR, {"how": "raises"}, InvalidEnvironmentError),
        (AFAR, {"how": "dies"}, InternalServiceError),
    ],
)
def test_what_the_service_cannot_play_is_said_with_its_type(client, environment, kwargs, kind):
    with pytest.raises(kind):
        client.policy("nano").evaluate(environment, env_kwargs=kwargs, episodes=2)


def test_the_service_connects_to_no_server_for_an_evaluation(client):
    policy = client.policy("nano")
    episode = EvaluationEpisode(episode_id="e", seed=0, sampling_seed=0)
    reference = EnvironmentRef(id="tinkergym/Remote-v0", kwargs={"url": "ws://127.0.0.1:1"})
    with pytest.raises(InvalidRequestError) as refused:
        list(policy.play_there(reference, [episode], temperature=0.0, cut=Cut()))
    assert refused.value.field == "environment"
