import json
import os
import subprocess

import pytest

import tinkergym as tg


@pytest.fixture
def trained(service):
    with tg.Client() as client:
        job = client.sft([{"prompt": "a", "completion": "b"}], steps=1, checkpoint_every=1)
        job.wait()
        return job.id


def test_prints_examples_that_work(tg_run, service, trained):
    shown = tg_run("serve-policy", f"{trained}@1").output
    assert f"{service.url}/openai/v1" in shown
    (command,) = [line for line in shown.split("\n\n") if line.startswith("curl ")]
    ran = subprocess.run(["bash", "-c", command], env=os.environ, capture_output=True, check=True, text=True)
    reply = json.loads(ran.stdout)
    assert (reply["model"], reply["choices"][0]["message"]["content"]) == (f"{trained}@1", "b2")


def test_names_the_system_prompt_of_training(tg_run, service, unplayed):
    job_id = unplayed(steps=1, system_prompt="Don't lose.")
    found = json.loads(tg_run("serve-policy", job_id, "--json").output)
    assert found["model"] == job_id and found["system_prompt"] == "Don't lose."
    assert "'\\''t lose" in tg_run("serve-policy", job_id).output


def test_refuses_what_is_not_there(tg_run, service):
    refused = tg_run("serve-policy", "job-404")
    assert refused.exit_code != 0
