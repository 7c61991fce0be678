"""Every recipe runs in its short form against a real service, and keeps what the others promise too."""

import json
import os
import runpy
import sys
import tomllib
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

import tinkergym as tg
from benchmarks.common import service
from tinkergym.remote import policy_chat
from tinkergym.trajectory.trajectory import ONLY_AGENT

pytestmark = [pytest.mark.service, pytest.mark.full("recipes take minutes")]

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = sorted(path.parent.name for path in EXAMPLES.glob("*/train.py"))
FACTS = {
    "dialogue": lambda facts: (
        set(facts["pass_hat"]) == {"before", "after"} and all(facts["pass_hat"].values())
    ),
    "math_lora": lambda facts: facts["same_answer_in_peft"] is True,
    "preference": lambda facts: facts["pairs"] > 0,
    "sft_rl": lambda facts: isinstance(facts["first_move"], str),
    "two_agent_gomoku": lambda facts: bool(facts["crossplay"]),
}
"""What else a recipe reports, and what must be true of it even in its short form."""


@pytest.fixture(scope="module")
def running():
    # TextArena imports much; on a busy machine that takes longer than the default allows.
    with service(None, "limits.job_check_seconds=120") as running:
        yield running


def prepare(name, monkeypatch, tmp_path):
    """Bring what a recipe needs besides this project; `scripts/test_extras.sh` has the real packages."""
    if name == "alfworld":
        if not find_spec("alfworld"):
            pytest.skip("needs the package alfworld: scripts/test_extras.sh alfworld")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if name == "published_env" and "TINKERGYM_VERIFIERS_PYTHON" not in os.environ:
        # A counterpart of verifiers, which says that it is one.
        monkeypatch.setenv("TINKERGYM_VERIFIERS_PYTHON", sys.executable)
        monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent / "tests" / "counterparts"))


@pytest.mark.parametrize("name", RECIPES)
def test_runs_the_short_form_to_its_report(running, monkeypatch, tmp_path, name):
    prepare(name, monkeypatch, tmp_path)
    result = run(running, monkeypatch, tmp_path, name, "--short")
    assert result["recipe"] == name
    assert all(result["metrics"].values())
    assert FACTS.get(name, lambda facts: True)(result["facts"])
    assert result["short"] is True
    assert result["evaluations"]
    for done in result["evaluations"].values():
        assert done[0][0] == 0
        assert done[-1][0] >= 2
    assert len(list(tmp_path.glob("*.png"))) == 1
    if name != "preference":  # It learns from pairs, and plays the environment of `math`.
        with tg.Client() as client:
            check_that_all_read_the_same_token_ids(client.job(result["job"]), monkeypatch)


def test_runs_control_with_shuffled_rewards_and_labels_it_so(running, monkeypatch, tmp_path):
    result = run(running, monkeypatch, tmp_path, "bandit", "--short", "--control")
    assert result["control"] is True
    with tg.Client() as client:
        assert client.job(result["job"]).spec.shuffle_rewards is True


def run(running, monkeypatch, folder, name, *options):
    """Run a recipe's script and return its result."""
    for variable, value in running.environment.items():
        monkeypatch.setenv(variable, value)
    script = EXAMPLES / name / "train.py"
    monkeypatch.setattr(sys, "argv", [str(script), *options, "--out", str(folder)])
    runpy.run_path(str(script), run_name="__main__")
    (result,) = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return result


def check_that_all_read_the_same_token_ids(job, monkeypatch):
    """Training, evaluation and inference begin an episode of one seed with the same prompt."""
    episode = next(
        one for one in job.episodes(first_step=1, last_step=1) if one.agent in (ONLY_AGENT, "black")
    )
    environment, alone = episode.environment, episode.agent == ONLY_AGENT
    policy = job.policy(temperature=0, agent="" if alone else episode.agent)
    in_training = first_prompt(episode.trajectory)
    assert in_inference(policy, opening(environment, episode), monkeypatch) == in_training
    if alone:
        evaluation = policy.evaluate(
            environment.id, env_kwargs=environment.kwargs, episodes=1, seed=episode.seed, progress=False
        )
        # One with tasks plays them in an order of its own, whatever the seed.
        assert evaluation.tasks is not None or first_prompt(evaluation.trajectories[0]) == in_training


def first_prompt(trajectory):
    return trajectory.segments[0].token_ids[: trajectory.turns[0].start]


def opening(environment, episode):
    """What the policy that begins is shown."""
    if episode.agent != ONLY_AGENT:
        with closing(tg.make_game(environment.id, **environment.kwargs)) as game:
            game.reset(seed=episode.seed)
            return game.observe(episode.agent)
    with closing(tg.make(environment.id, **environment.kwargs)) as env:
        return env.reset(seed=episode.seed)[0]


def in_inference(policy, observation, monkeypatch):
    asked = []

    def ask(connection, request):
        asked.append(request.prompt_ids)
        return answer(connection, request)

    answer = policy_chat.ask
    monkeypatch.setattr(policy_chat, "ask", ask)
    policy.act(observation)
    return asked[0]


@pytest.mark.parametrize("name", RECIPES)
def test_gives_each_recipe_a_short_script_two_configurations_and_page(name):
    assert len((EXAMPLES / name / "train.py").read_text().splitlines()) <= 60
    laptop, gpu = (
        tomllib.loads((EXAMPLES / name / f"{file}.toml").read_text()) for file in ("laptop", "gpu")
    )
    assert set(laptop) - {"short"} == set(gpu)
    assert all(set(laptop[name]) <= set(laptop) for name in {"short", "swapped"} & set(laptop))
    assert (EXAMPLES.parent / "docs" / "recipes" / f"{name}.md").exists()
