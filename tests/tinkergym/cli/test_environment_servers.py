"""Commands in an environment behind a server, named by its address; and what a job there needs afterwards."""

import json

import pytest

import tinkergym as tg
from tests.environment_server import TOKEN, environment_server
from tinkergym.errors import AuthenticationError
from tinkergym.wrappers import SystemPrompt

BOARD = "board/TicTacToeVs-v0"
SMALL = {"algorithm": tg.GRPO(group_size=2, groups_per_step=1)}


@pytest.fixture
def address(register_environment, monkeypatch):
    monkeypatch.delenv("TINKERGYM_ENV_TOKEN", raising=False)
    register_environment("afar/Board-v0", lambda: SystemPrompt(tg.make(BOARD), "Play to win."))
    with environment_server("afar/Board-v0", capacity=8) as url:
        yield url


def test_acts_by_policy_of_servers_job_without_token_and_server(service, client, register_environment):
    register_environment("afar/Board-v0", lambda: SystemPrompt(tg.make(BOARD), "Play to win."))
    with environment_server("afar/Board-v0", capacity=8) as url:
        job = client.train(url, env_kwargs={"token": TOKEN}, rollout="client", steps=1, **SMALL)
        job.wait()
        prompts = [request.prompt_ids for batch in service.sampled for request in batch]
        with pytest.raises(AuthenticationError):
            job.policy().evaluate(url, episodes=1)
        evaluation = job.policy().evaluate(url, episodes=2, env_kwargs={"token": TOKEN})
        assert len(evaluation.completed) == 2
    service.sampled.clear()
    observation, _ = tg.make(BOARD).reset(seed=1000)
    client.job(job.id).policy().act(observation)
    assert service.sampled[0][0].prompt_ids in prompts


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "--policy", "legal", "--tasks", "2", "--json"],
        ["check", "--only", "same seed"],
        ["play"],
        ["train", "--steps", "1", "--rollout", "client", "--group-size", "2", "--groups", "1"],
    ],
    ids=lambda command: command[0],
)
def test_takes_address_of_a_server_in_a_command(tg_run, service, address, command):
    name, *rest = command
    done = tg_run(name, address, "--env-set", f"token={TOKEN}", *rest, typed="a1\nb2\nc3\n" * 5)
    assert done.exit_code == 0, done.output
    assert TOKEN not in done.output


def test_keeps_token_out_of_a_kept_run(tg_run, address, tmp_path):
    file = tmp_path / "run.jsonl"
    tg_run("eval", address, "--env-set", f"token={TOKEN}", "--policy", "legal", "--tasks", 2, "--out", file)
    settings = json.loads(file.read_text().splitlines()[0])
    assert address in json.dumps(settings)
    assert TOKEN not in file.read_text()
