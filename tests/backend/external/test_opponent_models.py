"""Models elsewhere that play: who may be asked, and where their keys are."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from backend.external import opponent_models
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.evaluate_every import EvaluateEvery
from tinkergym.schema.fixed_players import External, League
from tinkergym.schema.jobs.parts import Limits
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train
from tinkergym.schema.parsing import parse_spec

KEY = "sk-very-secret"
ORIGIN = "https://models.example:443"
MODEL = External(url="https://models.example/v1", model="small", api_key=KEY)


def job(**settings):
    known = {"agents": {"x": Train(), "o": MODEL}, **settings}
    return RLSpec(environment={"id": "board/TicTacToe-v0"}, steps=1, **known)


@dataclass
class Kept:
    """Keeps secrets by their name."""

    secrets: dict[str, str]

    def put_secret(self, value):
        self.secrets["name"] = value
        return "name"


EVERYWHERE = [
    {"agents": {"x": Train(), "o": MODEL}},
    {"agents": {"x": Train(), "o": League(anchors=[MODEL])}},
    {"agents": {}, "self_play": League(anchors=[MODEL])},
    {"agents": {"x": Train(), "o": Train()}, "evaluate": [EvaluateEvery(1, against=MODEL)]},
]


@pytest.mark.parametrize("settings", EVERYWHERE, ids=["seat", "anchor", "self_play", "evaluation"])
def test_requires_model_to_be_listed_and_stores_its_key_apart(settings):
    spec, kept = job(**settings), {}
    with pytest.raises(InvalidRequestError) as caught:
        opponent_models.check_listed(spec.external_models, [])
    assert caught.value.field == "agents"
    opponent_models.check_listed(spec.external_models, [ORIGIN])
    stored = spec.with_players(lambda model, field: opponent_models.put_away(model, Kept(kept)))
    assert KEY not in stored.model_dump_json()
    (model,) = stored.external_models
    assert opponent_models.fetch(model.api_key, kept.get) == KEY
    with pytest.raises(InvalidRequestError):
        opponent_models.refuse_keys(spec.external_models)


def test_stores_job_without_such_models_as_it_is():
    spec = job(agents={"x": Train(), "o": Train()})
    assert spec.with_players(lambda model, field: pytest.fail(field)) == spec
    opponent_models.refuse_keys(spec.external_models)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"deterministic": True}, "deterministic"),
        ({"limits": Limits(step_timeout_seconds=30)}, "limits.step_timeout_seconds"),
        ({"environment": {"id": "ws://host:8300/board/TicTacToe-v0"}}, "agents"),
        ({"on_failure": "keep"}, "on_failure"),
    ],
)
def test_rejects_settings_that_remote_model_cannot_keep(settings, field):
    agents = {"x": {"kind": "train"}, "o": MODEL.model_dump()}
    known = {"environment": {"id": "board/TicTacToe-v0"}, "steps": 1, "agents": agents, **settings}
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec(known)
    assert caught.value.field == field
