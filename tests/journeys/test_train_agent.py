"""Agent programs as they are, trained in a service: their calls are episodes like any other's."""

import itertools
import os
import subprocess
import sys

import pytest

import tinkergym as tg
from benchmarks.agent_programs import trained
from tests.examples.test_agent_programs import EVERY, TASKS
from tests.tinkergym.datasets.test_layouts import CALLING
from tests.tinkergym.recording.sessions import said, user
from tinkergym.recording.command_program import CommandProgram

pytestmark = pytest.mark.service


def test_trains_program_with_adapter_per_role_certified_and_evaluated(client, tmp_path):
    seen, numbers = [], itertools.count()

    def solve_and_judge(session):
        seen.append((session.task, session.is_evaluation))
        number = next(numbers)
        draft = said(session, user(f"Say {session.task}"), role="solver", max_tokens=4)
        said(session, user(f"Judge {draft['content']}"), role="critic", max_tokens=4)
        said(session, user("An answer that is not trained on"), role="critic", max_tokens=2, top_p=0.5)
        return {"solver": number % 2, "critic": -(number % 2)}

    job = client.train_agent(
        solve_and_judge,
        {"train": ["a", "b"], "test": ["c"]},
        model="nano",
        roles={"solver": tg.Train(), "critic": tg.Train()},
        steps=1,
        algorithm=tg.GRPO(groups_per_step=1, group_size=4, aggregation="sequence"),
        sampling=tg.Sampling(max_turn_tokens=4, temperature=3.0),
        evaluate=tg.EvaluateEvery(1, split="test", episodes=2),
    )
    assert job.wait().state == "completed"
    played = [(one.trajectory.agent, len(one.trajectory.turns)) for one in job.episodes()]
    assert sorted(played) == [("critic", 1)] * 4 + [("solver", 1)] * 4, played
    checks = {check.name: check.verdict for check in job.certificate(tmp_path).checks}
    assert set(checks.values()) == {"holds"}, checks
    assert [one.episodes for one in job.evaluations()] == [2, 2]
    assert {task for task, is_evaluation in seen if is_evaluation} == {"c"}


@pytest.mark.full("trains two jobs until it shows: 40 s")
def test_teaches_an_unmodified_program_and_nothing_by_shuffled_rewards(client):
    before, after = trained(client, 0, 15, control=False)
    assert before < 0.3 and after > 0.6, (before, after)
    _, shuffled = trained(client, 0, 15, control=True)
    assert shuffled < 0.3


@pytest.mark.full("starts a dozen programs")
@EVERY
def test_trains_nano_instruct_in_programs_of_other_clients(client, command, turns):
    job = client.train_agent(
        CommandProgram(command),
        TASKS,
        model="nano-instruct",
        steps=2,
        chat_template=CALLING,
        algorithm=tg.GRPO(group_size=3, groups_per_step=1),
        sampling=tg.Sampling(max_turn_tokens=16),
    )
    assert job.wait().state == "completed"
    played = [one.trajectory for one in job.episodes()]
    assert [one.stop_reason for one in played] == ["terminated"] * 6, [one.error for one in played]


KILLED = """
import os, sys
import httpx
import tinkergym as tg
def play(session):
    with open({log!r}, "a") as file:
        file.write("played" + os.linesep)
    key = {{"Authorization": "Bearer " + session.key}}
    body = {{"model": "any", "messages": [{{"role": "user", "content": "hi"}}], "max_tokens": 2}}
    reply = httpx.post(session.url() + "/chat/completions", json=body, headers=key, timeout=60)
    if os.environ.get("KILLS") and session.seed % 2 == {parity}:
        os.kill(os.getpid(), 9)
    return float(len(reply.text) % 2)
with tg.Client() as client:
    if len(sys.argv) > 1:
        job = client.attach_agent(sys.argv[1], play)
    else:
        small = tg.GRPO(group_size=4, groups_per_step=2)
        job = client.train_agent(play, steps=2, algorithm=small, client_timeout_seconds=2.0)
        print(job.id, flush=True)
    job.wait(warn=False)
"""


@pytest.mark.full("kills a process that plays, and waits for its leases")
@pytest.mark.parametrize("parity", [0, 1])
def test_continues_when_the_process_of_programs_is_killed(client, tmp_path, parity):
    script = tmp_path / "script.py"
    script.write_text(KILLED.format(log=str(tmp_path / "log"), parity=parity))
    first = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "KILLS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    job_id = first.stdout.split()[0]
    if first.returncode:
        subprocess.run([sys.executable, script, job_id], check=True, timeout=300)
    job = client.job(job_id)
    assert job.state == "completed"
    played = [one.episode_id for one in job.episodes()]
    assert len(played) == len(set(played)) == 16
