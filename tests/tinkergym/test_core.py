import asyncio

import pytest

import tinkergym as tg
from tinkergym.core import SingleTurnEnv
from tinkergym.errors import EpisodeProtocolError, InvalidRewardError
from tinkergym.testing import EnvContract

CAPITALS = [("France", "Paris"), ("Japan", "東京"), ("Österreich", "Wien")]


class Countdown(tg.TextEnv):
    system_prompt = "Count down to 0."

    def start(self, options):
        self.next = int(self.np_random.integers(2, 9))
        return f"Start at {self.next}."

    def reply(self, action):
        right = action.strip() == str(self.next)
        self.next -= 1
        over = not right or self.next < 0
        return ("" if over else "Go on."), float(right and over), over, {"metrics": {"left": self.next + 1}}


class Capitals(tg.SingleTurnEnv):
    tasks = tg.tasks.SequenceTasks(
        [{"country": country, "capital": capital} for country, capital in CAPITALS]
    )

    def ask(self, options):
        _, task = self.tasks.choose(self.np_random, options)
        self.capital = task["capital"]
        return f"Capital of {task['country']}?"

    def score(self, answer):
        return float(answer.strip() == self.capital), {"empty": float(not answer)}


tg.register("tests/Countdown-v0", Countdown)
tg.register("tests/Capitals-v0", Capitals)


class TestCountdown(EnvContract):
    environment_id = "tests/Countdown-v0"

    def actions(self, seed):
        first = int(Countdown().reset(seed=seed)[0].removeprefix("Start at ").rstrip("."))
        return [str(number) for number in range(first, -1, -1)]


class TestCapitals(EnvContract):
    environment_id = "tests/Capitals-v0"


def test_plays_an_episode_as_text_environment():
    env = Countdown()
    observation, info = env.reset(seed=1)
    number = int(observation.removeprefix("Start at ").rstrip("."))
    assert info == {}
    for answer in range(number, 0, -1):
        assert env.step(str(answer))[:4] == ("Go on.", 0.0, False, False)
    assert env.step("0") == ("", 1.0, True, False, {"metrics": {"left": 0}})


def test_makes_system_prompt_metadata_of_that_class_alone():
    assert Countdown().metadata["system_prompt"] == "Count down to 0."
    assert "system_prompt" not in Capitals.metadata
    assert "system_prompt" not in tg.TextEnv.metadata


def test_terminates_single_turn_and_reports_metrics():
    env = Capitals()
    assert env.reset(options={"task_index": 1})[0] == "Capital of Japan?"
    assert env.step("東京") == ("", 1.0, True, False, {"metrics": {"empty": 0.0}})


def test_rejects_step_without_an_episode():
    env = Capitals()
    with pytest.raises(EpisodeProtocolError):
        env.step("Paris")
    env.reset(seed=0)
    env.step("Paris")
    with pytest.raises(EpisodeProtocolError):
        env.step("Paris")


def test_lets_subclass_skip_parents_init_and_choose_its_spaces():
    class Custom(Capitals):
        def __init__(self, limit):
            self.action_space = tg.spaces.Text(limit)

    assert Custom(5).action_space == tg.spaces.Text(5)
    assert Custom(5).observation_space == tg.spaces.Text()
    assert Custom(5).reset(seed=0)[0].startswith("Capital of")


def test_shares_no_spaces_between_instances():
    assert Capitals().action_space is not Capitals().action_space


@pytest.mark.parametrize(("base", "method"), [(tg.TextEnv, "start"), (tg.SingleTurnEnv, "ask")])
def test_names_missing_method(base, method):
    class Unfinished(base):
        pass

    with pytest.raises(NotImplementedError, match=f"Unfinished needs a method {method}"):
        Unfinished().reset(seed=0)


class AsyncScore(SingleTurnEnv):
    def ask(self, options):
        return "?"

    async def score(self, answer):
        await asyncio.sleep(0)
        if answer == "broken":
            raise InvalidRewardError("the judge is away")
        return float(len(answer)), {"letters": len(answer)}


def test_scores_asynchronously_also_where_a_loop_already_runs():
    env = AsyncScore()
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step("four")
    assert (reward, terminated, info["metrics"]) == (4.0, True, {"letters": 4})

    async def in_a_notebook():
        env.reset(seed=1)
        return env.step("three")[1]

    assert asyncio.run(in_a_notebook()) == 5.0
    env.reset(seed=1)
    with pytest.raises(InvalidRewardError):
        env.step("broken")
