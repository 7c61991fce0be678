import pytest

import tinkergym as tg
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError, TinkerGymError
from tinkergym.evaluation.evaluate import Evaluation
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.testing import ScriptedSampler, byte_bundle
from tinkergym.testing.made_up_episodes import one_turn_episode


class Parity(tg.SingleTurnEnv):
    """Name the seed's remainder by 3: right +1, wrong -1, "pass" 0."""

    def __init__(self, broken=False):
        self.broken = broken

    def ask(self, options):
        if self.broken and self.np_random_seed % 2:
            raise RuntimeError("out of order")
        return f"{self.np_random_seed} mod 3?"

    def score(self, answer):
        if answer == "pass":
            return 0.0
        right = answer == str(self.np_random_seed % 3)
        return (1.0 if right else -1.0), {"right": float(right)}


class Scripted:
    """A policy that answers by a function of the prompt."""

    name, model, version, limits = "p", "bytes", None, Limits()
    system_prompt, reasoning, tools, decoding = None, "keep", None, Decoding(max_turn_tokens=16)

    def __init__(self, answer):
        self.renderer = Renderer.from_bundle(byte_bundle())
        self.answer = answer
        self.temperatures = set()

    def sampler(self):
        policy = self

        class Recording(ScriptedSampler):
            def submit(self, requests, deliver):
                policy.temperatures |= {request.temperature for request in requests}
                super().submit(requests, deliver)

        return Recording(self.renderer, self.answer)


def test_counts_wins_draws_and_losses_by_sign_of_the_return():
    def answer(prompt):
        number = int(prompt.split("user\n")[1].split()[0])
        return "pass" if number % 5 == 0 else "1"

    evaluation = tg.evaluate(Scripted(answer), Parity, episodes=30, seed=100)
    seeds = range(100, 130)
    wins = sum(seed % 5 != 0 and seed % 3 == 1 for seed in seeds)
    draws = sum(seed % 5 == 0 for seed in seeds)
    assert [trajectory.seed for trajectory in evaluation.trajectories] == list(seeds)
    assert (evaluation.wins, evaluation.draws, evaluation.losses) == (wins, draws, 30 - wins - draws)
    assert evaluation.mean == pytest.approx((evaluation.wins - evaluation.losses) / 30)
    assert evaluation.low < evaluation.mean < evaluation.high
    assert evaluation.stop_reasons == {"terminated": 30}
    assert evaluation.metrics == {"right": pytest.approx(wins / (30 - draws))}
    assert evaluation.summary()["wins"] == wins
    assert f"won {wins}" in str(evaluation)


def test_shows_honest_intervals_where_all_episodes_end_alike():
    def played(reward, *, is_game=False):
        trajectories = tuple(one_turn_episode(reward, seed=seed) for seed in range(32))
        return Evaluation(trajectories=trajectories, is_game=is_game)

    lost = played(0.0)
    assert (lost.low, lost.high) == (0.0, pytest.approx(0.107, abs=1e-3))
    assert lost.summary()["interval_95"] == [lost.low, lost.high]
    # A game that was always won could have been lost.
    assert played(1.0).low == pytest.approx(0.893, abs=1e-3)
    assert played(1.0, is_game=True).low == pytest.approx(0.786, abs=1e-3)
    unknown = played(7.0)
    assert unknown.summary()["interval_95"] == [None, None]
    assert "7.00 [unknown]" in str(unknown)
    assert "7.000 [unknown]" in unknown._repr_html_()


def test_plays_greedily_unless_temperature_is_asked_for():
    policy = Scripted(lambda prompt: "1")
    tg.evaluate(policy, Parity, episodes=2)
    tg.evaluate(policy, Parity, episodes=2, temperature=0.5)
    assert policy.temperatures == {0.0, 0.5}


def test_counts_failed_episodes_outside_of_every_figure():
    evaluation = tg.evaluate(Scripted(lambda prompt: "0"), Parity, episodes=6, env_kwargs={"broken": True})
    assert len(evaluation.failed) == 3
    assert evaluation.stop_reasons == {"terminated": 3, "environment_error": 3}
    assert evaluation.wins + evaluation.draws + evaluation.losses == 3
    assert "3 failed" in str(evaluation)
    assert "out of order" in evaluation.failed[0].error


def test_raises_first_error_when_every_episode_fails():
    class Closed(Parity):
        def ask(self, options):
            raise RuntimeError("no such world")

    with pytest.raises(TinkerGymError, match=r"(?s)all 3 episodes failed.*no such world"):
        tg.evaluate(Scripted(lambda prompt: "0"), Closed, episodes=3)


@pytest.mark.parametrize(
    ("env", "kwargs", "said"),
    [
        ("board/TicTacToeVs-v9", {}, "did you mean board/TicTacToeVs-v0"),
        ("Parity", {}, "there is no environment 'Parity'"),
        ("board/TicTacToe-v0", {}, "a game for several players; use board/TicTacToeVs-v0"),
        ("board/TicTacToeVs-v0", {"seet": "first"}, "seet"),
        (Parity, {"brokn": True}, "did you mean broken"),
    ],
)
def test_rejects_environment_that_cannot_be_made_before_first_episode(env, kwargs, said):
    ended = []
    with pytest.raises(InvalidRequestError, match=said) as caught:
        tg.evaluate(Scripted(lambda prompt: "0"), env, env_kwargs=kwargs, on_episode=ended.append)
    assert "Traceback" not in str(caught.value)
    assert ended == []


def test_rejects_invalid_temperature_before_the_first_episode():
    with pytest.raises(InvalidRequestError) as caught:
        tg.evaluate(Scripted(lambda prompt: "0"), Parity, temperature=-1)
    assert caught.value.field == "temperature"


def test_says_in_one_sentence_what_a_constructor_raises():
    def make_env():
        raise RuntimeError("no such world")

    with pytest.raises(InvalidEnvironmentError) as caught:
        tg.evaluate(Scripted(lambda prompt: "0"), make_env)
    assert caught.value.field == "environment"


def test_evaluates_registered_environment_by_its_id():
    tg.register("tests/Parity-v0", Parity)
    assert tg.evaluate(Scripted(lambda prompt: "0"), "tests/Parity-v0", episodes=3).wins == 1


def test_reads_transcript_like_the_episode():
    text = tg.evaluate(Scripted(lambda prompt: "2"), Parity, episodes=1, seed=8).transcript()
    assert text == "environment:\n  8 mod 3?\npolicy:\n  2\nreturn 1 (terminated, seed 8)"


def test_tells_of_progress():
    seen = []
    tg.evaluate(Scripted(lambda prompt: "2"), Parity, episodes=4, on_episode=seen.append)
    assert {trajectory.seed for trajectory in seen} == {0, 1, 2, 3}


@pytest.mark.parametrize(("environment", "episodes"), [(Parity, 0), (Parity(), 2), (3, 2)])
def test_rejects_impossible_requests(environment, episodes):
    with pytest.raises(InvalidRequestError):
        tg.evaluate(Scripted(lambda prompt: ""), environment, episodes=episodes)


class Rows(tg.SingleTurnEnv):
    """Draws from 40 rows, of which 10 are trained on."""

    def __init__(self, split="test"):
        super().__init__()
        rows = [{"q": str(number)} for number in range(40)]
        self.tasks = tg.tasks.SequenceTasks({"train": rows[30:], "test": rows}, split=split)

    def ask(self, options):
        _, task = self.tasks.choose(self.np_random, options)
        return task["q"]

    def score(self, answer):
        return 1.0


def test_plays_every_row_of_split_once_by_default():
    policy = Scripted(lambda prompt: "0")
    policy.trained_in = [EnvironmentRef(id="local/Rows", kwargs={"split": "train"})]
    for settings, rows in (
        ({"split": "test"}, list(range(40))),
        ({"samples": 2}, [row for row in range(40) for _ in "ab"]),
    ):
        evaluation = tg.evaluate(policy, Rows, **settings)
        assert [one.task_index for one in evaluation.trajectories] == rows
        assert (evaluation.tasks, evaluation.overlap) == (40, 0.25)
    some = [one.task_index for one in tg.evaluate(policy, Rows, episodes=8).trajectories]
    assert len(set(some)) == 8
    with pytest.raises(InvalidRequestError) as caught:
        tg.evaluate(policy, Parity, samples=2)
    assert caught.value.field == "samples"
