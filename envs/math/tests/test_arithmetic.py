import numpy as np
import pytest
from tinkergym_math.arithmetic import ArithmeticEnv

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError


@pytest.mark.parametrize("split", ["train", "test"])
def test_chooses_task_by_its_number(split):
    env = ArithmeticEnv(split)
    for index in (0, 1, len(env.tasks) - 1):
        question, _ = env.reset(seed=9, options={"task_index": index})
        assert question == env.tasks[index]["question"]


def test_draws_task_by_seed_without_a_number():
    env, other = ArithmeticEnv(), ArithmeticEnv()
    drawn = [env.reset(seed=seed)[0] for seed in range(50)]
    assert drawn == [other.reset(seed=seed)[0] for seed in range(50)]
    assert len(set(drawn)) > 40


def test_pays_1_for_the_right_number():
    env = ArithmeticEnv()
    env.reset(options={"task_index": 3}, seed=0)
    _, reward, terminated, truncated, info = env.step(f" {env.tasks[3]['answer']}\n")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["metrics"] == {"correct": 1.0, "unreadable": 0.0}


@pytest.mark.parametrize(
    ("action", "unreadable"),
    [("1000", 0.0), ("-1", 0.0), ("", 1.0), ("forty", 1.0), ("4 2", 1.0), ("٤٢", 1.0), ("²", 1.0)],
)
def test_pays_0_for_anything_else_and_counts_non_numbers(action, unreadable):
    env = ArithmeticEnv()
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step(action)
    assert (reward, terminated) == (0.0, True)
    assert info["metrics"] == {"correct": 0.0, "unreadable": unreadable}
    assert observation in env.observation_space


@pytest.mark.parametrize("index", [-1, 3000])
def test_rejects_task_that_does_not_exist(index):
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "task_index"):
        ArithmeticEnv().reset(options={"task_index": index})


def test_rejects_unknown_split():
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "split"):
        ArithmeticEnv(split="validation")


def test_rejects_a_second_answer():
    env = ArithmeticEnv()
    env.reset(seed=np.random.default_rng(0).integers(10).item())
    env.step("1")
    with pytest.raises(EpisodeProtocolError):
        env.step("1")


def test_gives_right_gold_action_among_the_legal_ones():
    env = ArithmeticEnv("test")
    for index in range(50):
        env.reset(seed=0, options={"task_index": index})
        assert env.gold_action() in env.legal_actions()
        assert env.step(env.gold_action())[1] == 1.0
