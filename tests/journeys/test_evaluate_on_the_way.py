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


ROWS = [{"q": f"Say {number}.", "a": str(number)} for number in range(40)]
PLAYED = []


class Rows(tg.SingleTurnEnv):
    """Draws from rows, some of which are in both splits, and notes which it played of the test split."""

    def __init__(self, split="train"):
        super().__init__()
        rows = {"train": ROWS[30:] * 2, "test": ROWS}
        self.tasks = tg.tasks.SequenceTasks(rows, split=split)

    def ask(self, options):
        index, self.task = self.tasks.choose(self.np_random, options)
        if self.tasks.split == "test" and options:
            PLAYED.append(index)
        return self.task["q"]

    def score(self, answer):
        return float(self.task["a"] in answer)


def test_plays_every_row_of_split_once_and_states_overlap(client):
    """sileod/reasoning-core #21; PRIME-RL/TTRL #51: evaluation on tasks that are trained on."""
    PLAYED.clear()
    held_out = tg.EvaluateEvery(1, split="test")
    job = client.train(Rows, steps=1, algorithm=SMALL, evaluate=held_out)
    job.wait(warn=False)
    assert sorted(PLAYED) == sorted([*range(40), *range(40)])
    assert [(one.episodes, one.tasks, one.overlap) for one in job.evaluations()] == [(40, 40, 0.25)] * 2
    warned = [event.body for event in job.log() if event.body.type == "warning"]
    assert [one.name for one in warned if one.name.startswith("evaluation")] == ["evaluation_overlaps"]


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"episodes": 8}, 8),
        ({"samples": 2, "episodes": 8}, 4),
    ],
)
def test_plays_stated_number_of_rows_without_replacement(client, settings, rows):
    PLAYED.clear()
    held_out = tg.EvaluateEvery(1, split="test", temperature=1.0, **settings)
    job = client.train(Rows, steps=1, algorithm=SMALL, evaluate=held_out)
    job.wait(warn=False)
    times = {PLAYED.count(row) for row in PLAYED}
    assert (len(set(PLAYED)), times) == (rows, {2 * settings.get("samples", 1)})


def test_warns_of_evaluation_records_that_are_trained_on(client):
    """OpenRLHF/OpenRLHF #1089: held-out rows that are also training rows."""
    rows = [{"prompt": f"Say {word}.", "completion": word} for word in ["red", "blue", "green", "gold"]] * 2
    apart = client.sft(rows, steps=1, batch_size=2, held_out=0.5)
    same = client.sft(rows, steps=1, batch_size=2, eval_data=rows[:4])
    found = {}
    for name, job in {"apart": apart, "same": same}.items():
        job.wait(warn=False)
        log = [event.body for event in job.log()]
        shares = [one.metrics["eval_overlap"] for one in log if one.type == "step"]
        found[name] = [one.name for one in log if one.type == "warning"], shares
    assert found == {"apart": (["equal_records"], [0.0]), "same": (["evaluation_overlaps"], [1.0])}
