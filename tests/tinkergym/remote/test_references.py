"""A reference that names a policy of several reaches that policy, with its version."""

from types import SimpleNamespace

import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError, NotFoundError
from tinkergym.remote.api import Api
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train


class StubApi(Api):
    """Knows one policy by its id and by the best of its versions."""

    def __init__(self):
        super().__init__(None)

    def find_policy(self, reference):
        known = {"policy-7": None, "policy-7@best": 4, "job-1/black@best": 4}
        if reference not in known:
            raise NotFoundError(f"there is no {reference}")
        return SimpleNamespace(job_id="job-1", agent="black", version=known[reference])


@pytest.mark.parametrize(
    ("reference", "named"),
    [
        ("job-1", ("job-1", None, "")),
        ("job-1@9", ("job-1", 9, "")),
        ("job-1/black@9", ("job-1", 9, "black")),
        ("job-1/black@latest", ("job-1", None, "black")),
        ("job-1/black@best", ("job-1", 4, "black")),
        ("policy-7", ("job-1", None, "black")),
        ("policy-7@9", ("job-1", 9, "black")),
        ("policy-7@best", ("job-1", 4, "black")),
    ],
)
def test_names_job_version_and_agent_by_a_reference(reference, named):
    assert StubApi().trained_policy(PolicyRef.parse(reference)) == named


def test_acts_by_the_policy_of_one_agent(start_service):
    start_service(lambda prompt: "take 1", environments=["games/Nim-v0"])
    agents = {"player_0": Train(), "player_1": Train()}
    with tg.Client() as client:
        game = EnvironmentRef(id="games/Nim-v0")
        client.submit(RLSpec(environment=game, agents=agents, rollout="server", steps=1))
        policy = client.policy("job-1/player_1@0")
        assert (policy.name, policy.version) == ("job-1/player_1", 0)
        assert policy.act("hello") == "take 1"
        with pytest.raises(InvalidRequestError):
            client.policy("job-1@0")


@pytest.fixture
def two_policies(start_service):
    start_service(lambda prompt: "take 1", environments=["games/Nim-v0"])
    agents = {"player_0": Train(), "player_1": Train()}
    with tg.Client() as client:
        spec = RLSpec(environment=EnvironmentRef(id="games/Nim-v0"), agents=agents, rollout="server", steps=1)
        yield client.submit(spec)


def test_names_policy_of_an_agent_by_the_agent_alone(two_policies):
    found = [
        two_policies.policy("player_1"),
        two_policies.policy("player_0", version=0),
        two_policies.policy(0, agent="player_0"),
        two_policies.policy(version=0, agent="player_0"),
    ]
    first = ("job-1/player_0", 0)
    assert [(one.name, one.version) for one in found] == [("job-1/player_1", None), first, first, first]


@pytest.mark.parametrize(
    ("given", "named", "field"),
    [
        (["player_7"], {}, "agent"),
        ([], {}, "agent"),
        ([0], {}, "agent"),
        (["player_1"], {"agent": "player_0"}, "agent"),
        ([0], {"agent": "player_0", "version": 0}, "version"),
        ([1.5], {"agent": "player_0"}, "version"),
    ],
)
def test_rejects_unknown_missing_or_repeated_policy(two_policies, given, named, field):
    with pytest.raises(InvalidRequestError) as refused:
        two_policies.policy(*given, **named)
    assert refused.value.field == field
    if field == "agent" and not named:
        assert {"'player_0'", "'player_1'"} <= set(refused.value.hint.replace(",", "").split())
