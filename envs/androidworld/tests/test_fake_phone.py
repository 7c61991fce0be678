"""An environment of a phone, played on the fake one, which has AndroidWorld's interface."""

import json
import types

import numpy as np
import pytest
from tinkergym_androidworld.environment import PhoneEnv, instance_seed
from tinkergym_androidworld.fake_device import FakeDevice
from tinkergym_androidworld.fake_phone import TASKS, FakePhone, parameters_of

import tinkergym as tg
from tinkergym.errors import EnvironmentInfrastructureError, EpisodeProtocolError, InvalidRequestError
from tinkergym.registration.environments import make
from tinkergym.testing.contract import EnvContract

FAKE = "androidworld/FakePhone-v0"
DONE = '{"action_type": "status", "goal_status": "complete"}'


class TestFakePhone(EnvContract):
    environment_id = FAKE


class TestFakePhoneWithScreenshots(EnvContract):
    environment_id = FAKE
    kwargs = types.MappingProxyType({"screenshot": True, "boxes": True, "split": "test"})


def test_passes_gymnasiums_own_checker():
    from gymnasium.utils.env_checker import check_env

    check_env(make(FAKE, render_mode="rgb_array").unwrapped)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_can_do_every_task_and_says_that_it_is_fake(task):
    env = make(FAKE, tasks=[task], combinations=4)
    for index in range(4):
        observation, info = env.reset(options={"task_index": index})
        assert observation.startswith("Goal: On the fake phone")
        assert "fake" in info["device"]
        over, shown = False, [observation]
        while not over:
            observation, reward, terminated, truncated, info = env.step(env.get_wrapper_attr("gold_action")())
            shown.append(observation)
            over = terminated or truncated
        assert (reward, terminated) == (1.0, True)
        assert info["metrics"] == {"malformed_actions": 0.0, "success": 1.0, f"success_{task}": 1.0}
        assert all("fake phone" in text for text in shown)


def test_does_nothing_by_merely_saying_that_it_is_done():
    env = make(FAKE, tasks=["FakeSetSwitch"])
    env.reset(seed=0)
    assert env.step(DONE)[1:3] == (0.0, True)
    with pytest.raises(EpisodeProtocolError):
        env.step(DONE)


def test_skips_what_policy_says_before_its_action():
    env = make(FAKE, tasks=["FakeOpenApp"])
    env.reset(seed=0)
    home = env.get_wrapper_attr("gold_action")()
    assert env.step(f"Reason: {{maybe}} the app.\nAction: {home}")[4]["metrics"]["malformed_actions"] == 0.0
    assert env.step(DONE)[1] == 1.0


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("open the settings", "JSON object"),
        ('{"action_type": "click", "index": 3', "cannot be read"),
        ('{"action_type": "fly"}', "must be one of click"),
        ('{"action_type": "click"}', 'needs "index"'),
        ('{"action_type": "click", "index": 99}', "from 0 to"),
        ('{"action_type": "click", "index": true}', "from 0 to"),
        ('{"action_type": "click", "index": 1, "x": 3, "y": 4}', "either"),
        ('{"action_type": "click", "x": 3}', "either"),
        ('{"action_type": "click", "x": 3, "y": 4000}', '"y"'),
        ('{"action_type": "scroll", "direction": "in"}', "up, down"),
        ('{"action_type": "input_text", "text": ""}', "must be a text"),
        (r'{"action_type": "input_text", "text": "a\u0000b"}', "control characters"),
        (r'{"action_type": "answer", "text": "\ud800"}', "control characters"),
        ('{"action_type": "open_app", "app_name": "x; svc wifi disable #"}', "name of an app"),
        (r'{"action_type": "open_app", "app_name": "\ud800"}', "control characters"),
        ('{"action_type": "status", "goal_status": "soon"}', "infeasible"),
        ('{"action_type": "wait", "seconds": 3}', 'no "seconds"'),
        ('{"action_type": ["click"]}', "must be one of"),
        ("{" * 5000, "cannot be read"),
    ],
)
def test_answers_impossible_action_and_charges_a_step_for_it(action, said):
    env = make(FAKE, tasks=["FakeOpenApp"], max_steps=2)
    env.reset(seed=0)
    for truncated in (False, True):
        observation, reward, terminated, cut, info = env.step(action)
        assert said in observation.splitlines()[0]
        assert (reward, terminated, cut) == (0.0, False, truncated)
        assert info["metrics"]["malformed_actions"] == 1.0
    assert info["metrics"]["success"] == 0.0


def test_clicks_what_stands_at_the_clicked_point():
    env = make(FAKE, tasks=["FakeOpenApp"], boxes=True)
    observation, _ = env.reset(options={"task_index": 0})
    app = observation.splitlines()[0].removesuffix(".").rpartition(" ")[2]
    (line,) = [line for line in observation.splitlines()[1:] if f'"{app}"' in line]
    _, top, _, bottom = map(int, line.rpartition("(")[2].rstrip(")").split(", "))
    env.step(json.dumps({"action_type": "click", "x": 5, "y": (top + bottom) // 2}))
    assert env.step(DONE)[1] == 1.0


def test_gives_splits_other_parameters_of_the_same_kinds():
    train, test = (make(FAKE, split=split).unwrapped.tasks for split in ("train", "test"))
    assert [row["task"] for row in train] == [row["task"] for row in test]
    assert not {row["seed"] for row in train} & {row["seed"] for row in test}
    # The seed of AndroidWorld's own suite.
    assert test[0]["seed"] == instance_seed(30, test[0]["task"], 0)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_divides_parameters_of_each_kind_between_splits(task):
    train, test = (parameters_of(task, split) for split in ("train", "test"))
    assert train
    assert test
    assert not [one for one in train if one in test]
    assert len(train) + len(test) == len(TASKS[task].parameters())


def test_shares_no_goal_between_test_and_training_split():
    goals = {"train": set(), "test": set()}
    for split, shown in goals.items():
        env = make(FAKE, tasks=["FakeOpenApp"], split=split, combinations=64)
        for index in range(64):
            shown.add(env.reset(options={"task_index": index})[0].splitlines()[0])
    assert goals["train"]
    assert not goals["train"] & goals["test"]


def test_shows_screen_as_an_image_on_request():
    env = make(FAKE, screenshot=True, image_size=(64, 64), render_mode="rgb_array")
    observation, _ = env.reset(seed=0)
    assert observation["image"].shape == (64, 64, 3)
    assert observation in env.observation_space
    assert env.render().shape == (160, 96, 3)
    before = env.render()
    env.step('{"action_type": "open_app", "app_name": "Settings"}')
    assert not np.array_equal(before, env.render())


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"tasks": ["SystemWifiTurnOff"]}, "tasks"),
        ({"tasks": []}, "tasks"),
        ({"split": "validation"}, "split"),
        ({"combinations": 0}, "combinations"),
        ({"max_steps": 0}, "max_steps"),
        ({"image_size": [0, 3]}, "image_size"),
    ],
)
def test_rejects_wrong_setting(settings, field):
    with pytest.raises(InvalidRequestError) as error:
        make(FAKE, **settings)
    assert error.value.field == field


class Flaky(FakeDevice):
    """A device that fails when it is told to, and records its resets."""

    broken = False

    def __init__(self, events):
        super().__init__()
        self.events = events

    def reset(self, go_home=False):
        self.events.append("go home" if go_home else "stay")
        return super().reset(go_home)

    def execute_action(self, action):
        if self.broken:
            raise OSError("adb: device offline (fake)")
        super().execute_action(action)


class Watched(FakePhone):
    """The fake phone, and what was done to it."""

    def __init__(self, **settings):
        super().__init__()
        self.events, self.settings = [], settings

    def task(self, name, seed):
        task = super().task(name, seed)
        vars(task).update(self.settings)
        for method in ("initialize_task", "tear_down"):
            done = getattr(task, method)
            setattr(
                task, method, lambda env, done=done, method=method: (self.events.append(method), done(env))
            )
        return task

    def take(self):
        self.events.append("take")
        self.device = self.device or Flaky(self.events)
        return self.device

    def give_back(self, *, broken=False):
        self.events.append("broken" if broken else "give back")
        super().give_back(broken=broken)


def test_loses_episode_when_device_fails_and_connects_anew():
    phone = Watched()
    env = PhoneEnv(phone, tasks=["FakeOpenApp"])
    env.reset(seed=0)
    phone.device.broken = True
    with pytest.raises(EnvironmentInfrastructureError):
        env.step('{"action_type": "wait"}')
    assert phone.events[-1] == "broken"
    with pytest.raises(EpisodeProtocolError):
        env.step(DONE)
    env.reset(seed=0)
    assert env.step(DONE)[2]


@pytest.mark.parametrize(("settings", "start"), [({}, "go home"), ({"start_on_home_screen": False}, "stay")])
def test_sets_up_task_before_episode_starts_where_the_task_says(settings, start):
    # As in AndroidWorld: a task may open apps while it is set up.
    phone = Watched(**settings)
    PhoneEnv(phone, tasks=["FakeOpenApp"]).reset(seed=0)
    assert phone.events == ["take", "initialize_task", start]


def test_tears_down_every_task_however_its_episode_ended():
    phone = Watched()
    env = PhoneEnv(phone, tasks=["FakeOpenApp"], max_steps=1)
    episode = ["take", "initialize_task", "go home", "tear_down", "give back"]
    env.reset(seed=0)
    env.step(DONE)
    env.reset(seed=0)
    env.step('{"action_type": "wait"}')
    env.reset(seed=0)
    env.end_episode()
    env.reset(seed=0)
    env.reset(seed=0)
    env.close()
    assert phone.events == episode * 5


def test_leaves_out_action_prompt_on_request():
    assert "navigate_back" in make(FAKE).metadata["system_prompt"]
    assert "system_prompt" not in make(FAKE, instructions=False).metadata
    assert tg.make(FAKE, instructions=False).reset(seed=0)
