"""What a user does, against the real service: gateway, scheduler, Ray, learner and engine, each for real."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError, JobCancelledError, PromptTooLongError, UnknownModelError
from tinkergym.schema.events import JobState, StateEvent, StepEvent

pytestmark = pytest.mark.service

EXAMPLES = Path(__file__).parents[2] / "examples"
BOARD = "board/TicTacToeVs-v0"
SMALL = tg.GRPO(group_size=4, groups_per_step=2)


def test_trains_bit_equal_weights_in_both_placements_of_a_job(client):
    jobs = [
        client.train(BOARD, steps=2, algorithm=SMALL, seed=5, deterministic=True, rollout=rollout)
        for rollout in ("server", "client")
    ]
    hashes = []
    for job in jobs:
        job.wait()
        hashes.append(job.checkpoints()[-1].sha256)
    assert hashes[0] == hashes[1]


def test_acts_downloads_and_differs_from_initial_model_once_trained(client, tmp_path):
    job = client.train(BOARD, steps=3, algorithm=SMALL)
    job.wait()
    env = tg.make(BOARD)
    observation, _ = env.reset(seed=1)
    policy = job.policy()
    env.step(policy.act(observation))
    assert policy.last_version == 3
    untrained = job.policy(version=0)
    untrained.act(observation)
    assert untrained.last_version == 0
    folder = job.download(path=tmp_path)
    assert (folder / "adapter_model.safetensors").exists()
    exported = job.export(tmp_path / "policy", version=3)
    assert (exported.policy_version, exported.is_adapter, exported.without_tokenizer) == (3, True, "")
    assert (tmp_path / "policy" / "tokenizer.json").exists()
    assert len(policy.evaluate(BOARD, episodes=20, seed=10**6).completed) == 20


def test_learns_class_that_only_the_script_knows(client):
    class SayFive(tg.SingleTurnEnv):
        def ask(self, options):
            return "2 + 3 = ?"

        def score(self, answer):
            return float(answer.strip() == "5")

    job = client.train(
        SayFive, steps=3, algorithm=tg.GRPO(group_size=4, groups_per_step=2, learning_rate=5e-3)
    )
    rewards = [event.body.reward_mean for event in job.events() if isinstance(event.body, StepEvent)]
    assert job.wait().state is JobState.COMPLETED
    assert len(rewards) == 3


def test_takes_up_the_job_of_a_killed_client(client, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import tinkergym as tg\n"
        f"job = tg.Client().train({BOARD!r}, steps=2, rollout='client', client_timeout_seconds=1.0,\n"
        "    algorithm=tg.GRPO(group_size=4, groups_per_step=2))\n"
        "for event in job.events():\n"
        "    print(job.id, event.body.type, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    job_id = next(line.split()[0] for line in process.stdout if line.split()[1] == "step")
    process.kill()
    process.wait()
    watched = client.job(job_id)
    states = (event.body.state for event in watched.events() if isinstance(event.body, StateEvent))
    # Unless the client had handed everything in.
    assert JobState.WAITING_FOR_CLIENT in states or watched.view().state is JobState.COMPLETED
    assert client.attach(job_id).wait().step == 2


def test_trains_by_a_script_of_its_own(service, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    source = (EXAMPLES / "any_gym_script.py").read_text().replace("steps=10", "steps=2")
    source = source.replace("groups_per_step=4", "groups_per_step=1")
    (tmp_path / "script.py").write_text(source)
    runpy.run_path(str(tmp_path / "script.py"), run_name="__main__")
    assert "trained; continue with" in capsys.readouterr().out


def test_runs_the_first_example_to_its_report(service, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    source = (EXAMPLES / "tictactoe.py").read_text().replace("steps=100", "steps=2")
    source = source.replace("groups_per_step=16", "groups_per_step=1").replace("episodes=200", "episodes=4")
    (tmp_path / "example.py").write_text(source)
    runpy.run_path(str(tmp_path / "example.py"), run_name="__main__")
    shown = capsys.readouterr().out
    for part in (
        "held-out seeds: 4",
        "One game of the trained policy",
        "tinkergym play board/TicTacToeVs-v0",
    ):
        assert part in shown


def test_cancels_job_between_two_steps(client):
    job = client.train(BOARD, steps=1000, algorithm=SMALL)
    for event in job.events():
        if isinstance(event.body, StepEvent):
            job.cancel()
            break
    with pytest.raises(JobCancelledError):
        job.wait()


def test_rejects_what_cannot_work_before_anything_starts(client):
    class Wordy(tg.SingleTurnEnv):
        def ask(self, options):
            return "word " * 5000

        def score(self, answer):
            return 0.0

    with pytest.raises(PromptTooLongError):
        client.train(Wordy, steps=1)
    with pytest.raises(UnknownModelError):
        client.train(BOARD, steps=1, model="nanno")
    with pytest.raises(InvalidRequestError, match="size"):
        client.train(BOARD, steps=1, env_kwargs={"size": 0})


@pytest.mark.full("trains twice as long as it takes to show in an evaluation")
def test_learns_from_rewards_and_nothing_from_shuffled_ones(client):
    env = "bandit/Bandit-v0"  # its answers are a token or two, so that many fit into a step
    algorithm = tg.GRPO(group_size=8, groups_per_step=8, learning_rate=5e-3)
    evaluations = []
    for shuffled in (False, True):
        # In lockstep, so that what chance does here it does in every run.
        settings = {"seed": 3, "deterministic": True, "shuffle_rewards": shuffled}
        job = client.train(env, steps=12, algorithm=algorithm, **settings)
        job.wait()
        evaluations.append(job.policy().evaluate(env, episodes=200, seed=10**6, temperature=1.0))
    learned, control = evaluations
    before = client.policy("nano").evaluate(env, episodes=200, seed=10**6, temperature=1.0)
    assert learned.low > before.high, (before, learned)
    assert control.low <= before.high and before.low <= control.high


def test_trains_other_algorithms_through_service_and_reports_what_they_did(client):
    algorithms = {
        "rloo": tg.algorithms.RLOO(
            group_size=4,
            groups_per_step=2,
            loss="cispo",
            kl_coefficient=0.01,
            importance_correction="truncated",
        ),
        "reinforce++": tg.algorithms.ReinforcePlusPlus(
            groups_per_step=8, loss="gspo", aggregation="sequence", updates_per_step=2, credit="turn"
        ),
    }
    jobs = {name: client.train(BOARD, steps=2, algorithm=a, seed=5) for name, a in algorithms.items()}
    learned = set()
    for name, job in jobs.items():
        assert job.spec.algorithm.name == name
        steps = [event.body for event in job.events() if isinstance(event.body, StepEvent)]
        assert [step.episodes for step in steps] == [8, 8]
        assert all(step.metrics["grad_norm"] > 0 for step in steps)
        learned.add(job.checkpoints()[-1].sha256)
        if name == "rloo":
            assert steps[0].metrics["kl"] == pytest.approx(0.0, abs=1e-6)  # not yet moved
            assert steps[1].metrics["kl"] > 0
            assert steps[0].metrics["importance_weight_max"] == pytest.approx(1.0, abs=1e-4)
    assert len(learned) == 2


def test_runs_the_page_on_algorithms(service, monkeypatch, tmp_path, capsys):
    page = (EXAMPLES.parent / "docs" / "guides" / "algorithms.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    said = []
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "algorithms.md", "exec"), {"__name__": "page"})
        said.append(capsys.readouterr().out.splitlines()[-1])
    assert said[0] == "rloo"
    assert said[1].startswith("2 ")


@pytest.mark.full("trains five jobs, of two models")
def test_runs_page_on_written_answers_from_top_to_bottom(service, monkeypatch, tmp_path, capsys):
    page = (EXAMPLES.parent / "docs" / "guides" / "data.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, rows in zip(
        ("chats.jsonl", "pairs.jsonl"),
        re.findall(r"```json(?:l file=chats.jsonl)?\n(.*?)```", page, re.DOTALL),
        strict=True,
    ):
        Path(name).write_text(rows, encoding="utf-8")
    names = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        fewer = re.sub(r"\b(steps=|episodes_per_step=)\d+", r"\g<1>2", block)  # the page takes minutes
        exec(compile(fewer, "data.md", "exec"), names)
    assert capsys.readouterr().out.splitlines() == ["Green."]
    assert names["job"].wait().state is JobState.COMPLETED


def test_chains_written_completions_preferences_and_a_teacher_across_jobs(client, tmp_path):
    words = {"sky": "blue", "snow": "white", "coal": "black", "grass": "green"}
    rows, pairs = tmp_path / "rows.jsonl", tmp_path / "pairs.jsonl"
    rows.write_text("".join(f'{{"prompt": "{w}?", "completion": "{c}"}}\n' for w, c in words.items()))
    pairs.write_text(
        "".join(f'{{"prompt": "{w}?", "chosen": "{c}!", "rejected": "{c}"}}\n' for w, c in words.items())
    )
    first = client.sft(rows, steps=40, learning_rate=1e-2)
    first.wait()
    assert {word: first.policy(temperature=0).act(f"{word}?") for word in words} == words
    second = client.preference(pairs, steps=8, learning_rate=1e-3, initial_policy=first.id)
    second.wait()
    steps = [event.body for event in second.events() if isinstance(event.body, StepEvent)]
    assert steps[0].metrics["reward_margin"] == pytest.approx(0.0, abs=1e-5)
    assert steps[-1].metrics["accuracy"] == 1.0
    third = client.distill(BOARD, teacher=second.id, steps=2, episodes_per_step=4)
    assert third.wait().spec.teacher == f"{second.id}@8"
