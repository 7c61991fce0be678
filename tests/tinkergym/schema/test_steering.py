import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.job_spec import EnvironmentRef, JobSpec
from tinkergym.schema.jobs import SFTSpec
from tinkergym.schema.steering import changes_to, settings_at, settings_now
from tinkergym.schema.updates import SettingChange, SettingsUpdate

RL = JobSpec(environment=EnvironmentRef(id="x"), steps=9, algorithm=tg.GRPO(learning_rate=0.1))
SFT = SFTSpec(data="ab" * 32, steps=9, learning_rate=0.1)


def update(rate, from_step):
    change = SettingChange(name="learning_rate", old=0.1, new=rate)
    return SettingsUpdate(changes=[change], from_step=from_step)


@pytest.mark.parametrize("spec", [RL, SFT], ids=lambda spec: spec.kind)
def test_a_change_names_the_setting_wherever_a_kind_of_job_has_it(spec):
    assert changes_to(spec, {"learning_rate": 0.2}) == [SettingChange(name="learning_rate", old=0.1, new=0.2)]
    assert changes_to(spec, {"learning_rate": 0.1}) == []


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"seed": 3}, "seed"), ({"group_size": 3}, "group_size"), ({"learning_rate": -1}, "learning_rate")],
)
def test_what_cannot_be_changed_on_the_way_is_refused(settings, field):
    with pytest.raises(InvalidRequestError) as caught:
        changes_to(RL, settings)
    assert caught.value.field.rpartition(".")[2] == field


def test_a_step_is_learned_with_the_changes_that_were_due_however_often_it_is_repeated():
    updates = [update(0.2, 3), update(0.3, 5), update(0.4, None)]
    rates = [settings_at(RL, updates, step).algorithm.learning_rate for step in range(1, 7)]
    assert rates == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    assert settings_now(RL, updates).algorithm.learning_rate == 0.4
