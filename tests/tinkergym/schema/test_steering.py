import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.events import SettingChange, SettingsUpdate
from tinkergym.schema.jobs.dataset import SFTSpec
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train
from tinkergym.schema.parsing import parse_spec
from tinkergym.schema.steering import changes_to, settings_at, settings_now

RL = RLSpec(environment=EnvironmentRef(id="x"), steps=9, algorithm=tg.GRPO(learning_rate=0.1))
SFT = SFTSpec(data="ab" * 32, steps=9, learning_rate=0.1)


def update(rate, from_step):
    change = SettingChange(name="learning_rate", old=0.1, new=rate)
    return SettingsUpdate(changes=[change], from_step=from_step)


@pytest.mark.parametrize("spec", [RL, SFT], ids=lambda spec: spec.kind)
def test_names_setting_of_a_change_in_each_kind_of_job(spec):
    assert changes_to(spec, {"learning_rate": 0.2}) == [SettingChange(name="learning_rate", old=0.1, new=0.2)]
    assert changes_to(spec, {"learning_rate": 0.1}) == []


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"seed": 3}, "seed"), ({"group_size": 3}, "group_size"), ({"learning_rate": -1}, "learning_rate")],
)
def test_rejects_what_cannot_be_changed_on_the_way(settings, field):
    with pytest.raises(InvalidRequestError) as caught:
        changes_to(RL, settings)
    assert caught.value.field.rpartition(".")[2] == field


def test_learns_step_with_due_changes_however_often_repeated():
    updates = [update(0.2, 3), update(0.3, 5), update(0.4, None)]
    rates = [settings_at(RL, updates, step).algorithm.learning_rate for step in range(1, 7)]
    assert rates == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    assert settings_now(RL, updates).algorithm.learning_rate == 0.4


OWN = {"black": {"kind": "train", "algorithm": tg.GRPO(learning_rate=0.3)}, "white": {"kind": "train"}}
GAME = parse_spec(
    {
        "environment": {"id": "x"},
        "steps": 9,
        "algorithm": tg.GRPO(learning_rate=0.1),
        "agents": OWN,
    }
)


def test_changes_each_policy_of_a_game_alone():
    changes = changes_to(GAME, {"agents.black.learning_rate": 0.2, "agents.white.kl_coefficient": 0.5})
    assert {change.name: (change.old, change.new) for change in changes} == {
        "agents.black.learning_rate": (0.3, 0.2),
        "agents.white.kl_coefficient": (0.0, 0.5),
    }
    later = settings_at(GAME, [SettingsUpdate(changes=changes, from_step=3)], 3)
    black, white = (later.for_agent(agent).algorithm for agent in ("black", "white"))
    assert (black.learning_rate, black.kl_coefficient) == (0.2, 0.0)
    assert (white.learning_rate, white.kl_coefficient) == (0.1, 0.5)


@pytest.mark.parametrize("name", ["agents.red.learning_rate", "agents.black.seed", "agents.black.updates"])
def test_rejects_change_of_what_a_policy_lacks(name):
    with pytest.raises(InvalidRequestError) as caught:
        changes_to(GAME, {name: 1})
    assert caught.value.field == name


def test_rejects_change_that_a_policys_own_algorithm_would_ignore():
    with pytest.raises(InvalidRequestError) as caught:
        changes_to(GAME, {"learning_rate": 0.2})
    assert caught.value.field == "learning_rate"
    assert changes_to(GAME, {"updates": "only:black"})[0].new == "only:black"
    shared = GAME.model_copy(update={"agents": {"black": Train(), "white": Train()}})
    assert len(changes_to(shared, {"learning_rate": 0.2})) == 1
