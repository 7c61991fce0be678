import json

import gymnasium as gym
import pytest

import tinkergym as tg
from tinkergym.errors import InvalidEnvironmentError
from tinkergym.tasks.grid import GridCell, cell_of
from tinkergym.testing.checks_subject import Subject
from tinkergym.testing.contract_checks import CHECKS, Outcome, run_checks

TASKS = [{"question": f"say {i}", "answer": str(i)} for i in range(10)]


class Single(tg.SingleTurnEnv):
    def ask(self, options):
        self.answer = str(self.np_random.integers(10))
        return f"say {self.answer}"

    def score(self, answer):
        return float(answer == self.answer)

    def legal_actions(self):
        return [str(i) for i in range(10)]


class Multi(tg.TextEnv):
    def start(self, options):
        self.left = 3
        return f"say {self.np_random.integers(10)}"

    def reply(self, action):
        self.left -= 1
        return f"{self.left} left", 0.0, self.left == 0

    def legal_actions(self):
        return [str(i) for i in range(10)]


def from_tasks(env, options):
    env.answer = (task := env.tasks.choose(env.np_random, options)[1])["answer"]
    return task["question"]


class SingleWithTasks(Single):
    def __init__(self):
        self.tasks = tg.tasks.SequenceTasks({"train": TASKS, "test": TASKS}, split="train")

    def ask(self, options):
        return from_tasks(self, options)


class MultiWithTasks(Multi):
    tasks = tg.tasks.SequenceTasks(TASKS)

    def start(self, options):
        super().start(options)
        return from_tasks(self, options)


class PlainGym(gym.Env):
    """Hand-written, and says where it stands."""

    metadata = {"render_modes": [], "turns": "multi", "data": "free"}  # noqa: RUF012 - as Gymnasium has it
    observation_space = action_space = tg.spaces.Text()


CELLS = {
    Single: ("single", "free"),
    Multi: ("multi", "free"),
    SingleWithTasks: ("single", "dependent"),
    MultiWithTasks: ("multi", "dependent"),
    PlainGym: ("multi", "free"),
}


@pytest.mark.parametrize("env", CELLS, ids=lambda env: env.__name__)
def test_knows_cell_of_each_environment_wrapped_or_not(env):
    turns, data = CELLS[env]
    assert cell_of(env()) == GridCell(turns=turns, data=data)
    assert cell_of(gym.wrappers.TimeLimit(env(), 5)) == GridCell(turns=turns, data=data)
    assert str(cell_of(env())) == f"{turns}-turn, data-{data}"
    json.dumps(env().metadata)


def test_puts_splits_in_metadata_of_that_instance_alone():
    assert SingleWithTasks().metadata["splits"] == ["train", "test"]
    assert "splits" not in SingleWithTasks.metadata
    assert "splits" not in Single.metadata


def test_keeps_cell_beside_own_metadata():
    class Rendered(MultiWithTasks):
        metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 - as Gymnasium has it
        system_prompt = "Play."

    assert Rendered.metadata == {
        "render_modes": ["ansi"],
        "turns": "multi",
        "data": "dependent",
        "system_prompt": "Play.",
    }


@pytest.mark.parametrize("metadata", [{}, {"turns": "single"}, {"turns": "many", "data": "free"}])
def test_rejects_undeclared_environment_with_what_to_write(metadata):
    env = PlainGym()
    env.metadata = metadata
    with pytest.raises(InvalidEnvironmentError, check=lambda error: error.field.startswith("metadata.")):
        cell_of(env)


def checked(make):
    (check,) = [check for check in CHECKS if check.name == "grid cell"]
    (result,) = run_checks(Subject(make=make), [check])
    return result


PLAYED = [env for env in CELLS if env is not PlainGym]


@pytest.mark.parametrize(
    ("env", "declared"),
    [(env, declared) for env in PLAYED for declared in map(CELLS.get, PLAYED)],
)
def test_accepts_the_true_cell_and_none_of_the_others(env, declared):
    turns, data = declared

    class Declared(env):
        def __init__(self):
            super().__init__()
            self.metadata = {"render_modes": [], "turns": turns, "data": data}

    expected = Outcome.OK if CELLS[env] == declared else Outcome.FAILED
    assert checked(Declared).outcome is expected


def test_judges_no_environment_that_declares_nothing():
    class Silent(Single):
        def __init__(self):
            self.metadata = {}

    assert checked(Silent).outcome is Outcome.SKIPPED
