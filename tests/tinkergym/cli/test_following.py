import os
import signal
import subprocess
import sys

import pytest

from tinkergym.schema.events import ErrorView, JobState

BOARD = "board/TicTacToeVs-v0"


def test_ends_command_of_failed_job_with_its_reason(run, service, unplayed):
    unplayed(steps=1)
    service.jobs.end(
        "job-1", JobState.FAILED, error=ErrorView(type="X", message="it fell over", hint="mend it")
    )
    result = run("jobs", "attach", "job-1")
    assert result.exit_code == 1
    assert "it fell over\n  mend it" in result.output


def test_plays_detached_client_job_by_attach(run, service):
    small = ["--group-size", "2", "--groups", "1"]
    result = run("train", BOARD, "--steps", "2", "--rollout", "client", "--detach", *small)
    assert "tinkergym jobs attach job-1" in result.output
    with service.jobs.changed:  # its worker may still be asking for episodes while the command has ended
        service.jobs.changed.wait_for(lambda: service.jobs.get("job-1").workers, timeout=60)
    service.jobs.take_back("job-1")
    assert "step 2/2" in run("jobs", "attach", "job-1").output


def test_leaves_job_running_on_ctrl_c_and_says_how_on(service, tmp_path, connect):
    (tmp_path / "endless.py").write_text(
        "import tinkergym as tg\n"
        "class Env(tg.SingleTurnEnv):\n"
        "    def ask(self, options): return 'b2?'\n"
        "    def score(self, answer): return float(answer == 'b2')\n"
    )
    command = [sys.executable, "-m", "tinkergym.cli.main", "train", "endless:Env", "--steps", "100000"]
    process = subprocess.Popen(
        [*command, "--group-size", "2", "--groups", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 1/"):
            break
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait() == 130
    assert "tinkergym jobs attach job-1 --env endless:Env" in rest
    assert "tinkergym jobs cancel job-1" in rest
    assert "Traceback" not in rest
    assert not service.jobs.get("job-1").view.state.final
    connect().job("job-1").cancel()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", BOARD, "--steps", "1", "--set", "algorithm=ppoo"], "did you mean 'ppo'?"),
        (["train", BOARD, "--steps", "1", "--set", "env_kwargs=1", "--set", "env_kwargs.a=2"], "nested"),
        (
            ["train", BOARD, "--steps", "1", "--set", "algorithm.name=gspo"],
            "did you mean algorithm.loss='gspo'?\n",
        ),
        (["train", "tinkergym:TextEnv", "--steps", "1", "--rollout", "server"], "use rollout='client'"),
        (["train", BOARD, "--steps", "1", "--rollout", "client", "--env-set", "oponent=x"], "mean opponent?"),
        (["play", BOARD, "--env-set", "oponent=x"], "did you mean opponent?"),
    ],
)
def test_says_what_to_do(run, service, arguments, said):
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_says_how_to_play_on_a_waiting_job(run, service, unplayed):
    unplayed(steps=1)
    service.jobs.end("job-1", JobState.WAITING_FOR_CLIENT)
    assert "tinkergym jobs attach job-1\n" in run("jobs", "show", "job-1").output
