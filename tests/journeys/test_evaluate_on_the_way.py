"""Evaluation on the way, as a script sees it: played by the service, and by the client."""

import gymnasium as gym
import pytest
from typer.testing import CliRunner

import tinkergym as tg
from tinkergym.cli.main import app
from tinkergym.schema.events import EvaluationEvent

pytestmark = pytest.mark.service

SMALL = tg.GRPO(group_size=2, groups_per_step=2)


class Short(tg.SingleTurnEnv):
    """Pays for short answers."""

    def ask(self, options):
        return "Say something."

    def score(self, answer):
        return -len(answer) / 100


def test_plays_evaluations_on_the_service_in_several_environments(client, tmp_path):
    job = client.train(
        "board/TicTacToeVs-v0",
        steps=2,
        algorithm=SMALL,
        evaluate=[
            tg.EvaluateEvery(1, episodes=4, env_kwargs={"opponent": "heuristic"}, name="heuristic"),
            tg.EvaluateEvery(2, "bandit/Bandit-v0", episodes=2, temperature=1.0),
        ],
    )
    seen = [event.body for event in job.events() if isinstance(event.body, EvaluationEvent)]
    job.wait(warn=False)
    assert [(one.name, one.step, one.episodes) for one in seen] == [
        ("heuristic", 0, 4),
        ("bandit/Bandit-v0", 0, 2),
        ("heuristic", 1, 4),
        ("heuristic", 2, 4),
        ("bandit/Bandit-v0", 2, 2),
    ]
    assert job.evaluations() == seen
    assert len(job.evaluations("heuristic")) == 3
    best = [one for one in seen if one.best][-1]
    assert client.policy(f"{job.id}@best").version == best.policy_version
    _best_on_the_command_line(f"{job.id}@best", best.policy_version, tmp_path)


def _best_on_the_command_line(name, version, folder):
    board = "board/TicTacToeVs-v0"
    for command in (
        ["play", board, "--policy", name, "--watch"],
        ["eval", board, "--policy", name, "--tasks", "2", "--json"],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["export", name, str(folder / "best")])
    if not version:  # the model itself was best, and it is no checkpoint
        assert done.exit_code == 2, done.output
        return
    assert f"version {version}," in done.output
    assert (folder / "best" / "adapter_model.safetensors").exists()


def test_plays_evaluations_of_a_local_class_in_the_client(client):
    job = client.train(Short, steps=2, algorithm=SMALL, evaluate=tg.EvaluateEvery(2, episodes=3))
    job.wait(warn=False)
    assert [(one.step, one.episodes, one.failed_episodes) for one in job.evaluations()] == [
        (0, 3, 0),
        (2, 3, 0),
    ]


@pytest.mark.parametrize(
    ("evaluate", "said"),
    [
        (tg.EvaluateEvery(1, env_kwargs={"opponent": "nobody"}), "nobody"),
        (tg.EvaluateEvery(1, "math/Arithmetc-v0"), "did you mean math/Arithmetic-v0"),
        (tg.EvaluateEvery(1, "board/TicTacToe-v0"), "use board/TicTacToeVs-v0"),
    ],
)
def test_rejects_environment_that_service_cannot_make_immediately(client, evaluate, said):
    with pytest.raises(tg.TinkerGymError, match=said) as refused:
        client.train("board/TicTacToeVs-v0", steps=2, evaluate=evaluate)
    assert refused.value.field == "evaluate"


def test_evaluates_job_on_a_dataset_in_the_scripts_own_environment(client):
    rows = tg.tasks.SequenceTasks([{"prompt": "?", "completion": "no"}] * 4)
    own = tg.EvaluateEvery(2, Short, episodes=3)
    job = client.sft(rows, steps=2, batch_size=2, evaluate=own)
    job.wait(warn=False)
    assert [(one.step, one.episodes, one.failed_episodes) for one in job.evaluations()] == [
        (0, 3, 0),
        (2, 3, 0),
    ]
    with client.attach(job.id, env=Short) as attached:
        assert attached.view().state == "completed"
    with pytest.raises(tg.TinkerGymError) as refused:
        client.attach(job.id, env=gym.Env)
    assert refused.value.field == "env"
