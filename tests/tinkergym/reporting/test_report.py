import io
import shlex
import types

import pytest
from rich.console import Console

import tinkergym as tg
from tinkergym.reporting import report
from tinkergym.schema.parsing import parse_spec


@pytest.fixture
def job(start_service, connect):
    start_service(lambda prompt: "1" if "even" in prompt else "0")
    job = connect().train(EvenOrOdd, steps=3, algorithm=tg.GRPO(group_size=2, groups_per_step=1))
    job.wait()
    return job


class EvenOrOdd(tg.SingleTurnEnv):
    def ask(self, options):
        return str(self.np_random.choice(["even", "odd"]))

    def score(self, answer):
        return float(answer == "1")


def test_shows_intervals_game_curve_and_how_to_play_on(job, tmp_path):
    before = job.policy(version=0).evaluate(EvenOrOdd, episodes=20)
    output = io.StringIO()
    picture = tmp_path / "runs" / "curve.png"
    report.show(job, before, before, picture=picture, console=Console(file=output, width=100))
    text = output.getvalue()
    for part in (
        "Reward of each train step",
        "return above 0",
        "mean return",
        "environment:",
        "policy:",
    ):
        assert part in text
    assert "draw" not in text and "draw" not in str(before) and "drew" not in str(before)
    assert f"tinkergym play MODULE:EvenOrOdd --policy {job.id}" in text
    assert picture.read_bytes().startswith(b"\x89PNG") or "matplotlib is not installed" in text


def test_shows_draws_of_a_game_even_without_losses(start_service, connect):
    start_service(lambda prompt: "1")
    policy = connect().policy("nano")
    played = policy.evaluate("games/NimVs-v0", episodes=3, env_kwargs={"on_illegal": "random"})
    output = io.StringIO()
    Console(file=output, width=100).print(report.comparison(played, played))
    assert all(word in output.getvalue() for word in ("win", "draw", "loss"))
    assert "drew 0" in str(played)


def test_puts_highest_value_of_curve_on_top():
    lines = report.curve([0.0, 1.0], rows=2, columns=10)
    assert lines[0] == "  +1.00 ┤ █"
    assert lines[1].endswith("▁█")


def test_says_that_a_curve_has_nothing():
    assert report.curve([]) == ["no train steps"]


def test_plays_job_behind_address_by_that_address_with_token():
    url = "ws://127.0.0.1:8300"
    spec = {"kind": "rl", "environment": {"id": "tinkergym/Remote-v0", "kwargs": {"url": url}}, "steps": 1}
    job = types.SimpleNamespace(id="job-1", spec=parse_spec(spec))
    command = shlex.split(report.play_command(job, url))
    assert command[1:] == ["play", url, "--policy", "job-1", "--env-set", 'token="..."']
