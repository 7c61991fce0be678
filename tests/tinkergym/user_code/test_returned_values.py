import asyncio
import math
import threading
import warnings
from decimal import Decimal
from fractions import Fraction

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinkergym as tg
from tinkergym.core import refuse_unfinished
from tinkergym.errors import InvalidEnvironmentError
from tinkergym.evaluation.baselines import RandomTextPolicy, play_episode
from tinkergym.trajectory.trajectory import StopReason
from tinkergym.user_code.returned_values import finite_json_number, finite_number, settled

KINDS = [
    float,
    np.float64,
    np.array,
    Decimal,
    Fraction,
    lambda value: torch.tensor(value, dtype=torch.float64),
    lambda value: torch.tensor(value, dtype=torch.float64, requires_grad=True),
]


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(KINDS))
def test_reads_number_alike_in_whatever_it_is_kept(value, kind):
    assert finite_number(kind(value)) == value


@given(st.integers(-(2**53), 2**53), st.sampled_from([int, np.int64, np.array, torch.tensor]))
def test_reads_an_integer_alike_in_any_container(value, kind):
    assert finite_number(kind(value)) == value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, "None (did you forget"),
        ("1.0", "str"),
        (np.str_("1.0"), "str_"),
        ([1.0], "list"),
        (float, "type"),
        (np.ones(1), "ndarray of shape (1,)"),
        (torch.ones(2, 3), "Tensor of shape (2, 3)"),
        (1j, "complex"),
        (np.complex128(1), "complex128"),
        (10**400, "int"),
        (math.nan, "nan"),
        (np.array(math.inf), "inf"),
        (torch.tensor(math.nan), "nan"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_names_what_is_no_number_by_its_type(value, named):
    with pytest.raises(ValueError) as refused:
        finite_number(value)
    assert named in str(refused.value)


async def judged(answer):
    return 1.0


def test_names_coroutine_by_its_function():
    with warnings.catch_warnings(), pytest.raises(ValueError, match="judged"):
        warnings.simplefilter("error")
        finite_number(judged(""))


class Paying(tg.SingleTurnEnv):
    def __init__(self, reward):
        self.reward = reward

    def ask(self, options):
        return "?"

    def score(self, answer):
        return self.reward, {"as_metric": self.reward}


def test_takes_tensor_as_reward_wherever_episode_is_played():
    trajectory = play_episode(Paying(torch.tensor(0.5)), RandomTextPolicy(), seed=0)
    assert (trajectory.episode_return, trajectory.completed) == (0.5, True)
    rubric = tg.Rubric()
    rubric.term(lambda answer: np.array(0.5), name="half")
    assert rubric.score(answer="").reward == 0.5


def test_names_coroutine_wherever_episode_is_played():
    trajectory = play_episode(Paying(judged("")), RandomTextPolicy(), seed=0)
    assert trajectory.stop_reason is StopReason.INVALID_REWARD
    assert "judged" in trajectory.error


def test_awaits_async_term():
    rubric = tg.Rubric()
    rubric.term(judged)
    assert rubric.score(answer="").reward == 1.0


@pytest.mark.parametrize("name", ["ask", "step"])
def test_finds_async_method_of_environment_before_a_job(client, name):
    async def method(self, what):
        return 1.0

    own = type("Own", (Paying,), {name: method})
    with pytest.raises(InvalidEnvironmentError) as caught:
        client.train(lambda: own(1.0), steps=1)
    assert caught.value.field == "environment"


def test_awaits_terms_of_a_hand_written_environment_too():
    class Plain(gym.Env):
        async def step(self, action):
            return "", 0.0, True, False, {}

    with pytest.raises(InvalidEnvironmentError) as caught:
        refuse_unfinished(Plain())
    assert caught.value.field == "environment"


@pytest.mark.parametrize(
    ("value", "number"), [(2, 2.0), (True, 1.0), (0.5, 0.5), (10**400, None), (math.nan, None), ("1", None)]
)
def test_reads_number_from_json_as_float_if_it_fits(value, number):
    assert finite_json_number(value) == number


def test_returns_value_itself():
    assert settled(3.0) == 3.0


def test_waits_for_a_coroutine():
    async def score():
        await asyncio.sleep(0)
        return 0.5

    assert settled(score()) == 0.5


def test_raises_its_error_here():
    async def score():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        settled(score())


def test_runs_all_on_one_loop_whichever_thread_waits():
    loops = []

    async def score():
        loops.append(asyncio.get_running_loop())

    threads = [threading.Thread(target=lambda: settled(score())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settled(score())
    assert len(loops) == 4
    assert len(set(map(id, loops))) == 1


def test_works_where_a_loop_runs_already():
    async def score():
        return 1.0

    async def notebook():
        return settled(score())

    assert asyncio.run(notebook()) == 1.0
