"""A machine with the client alone uses the environments that are installed with the service."""

import json

import pytest

from backend.gateway import routes_service
from tinkergym.registration.packs import Pack

AFAR = "afar/Game-v0"


@pytest.fixture
def service(start_service, monkeypatch):
    pack = Pack(name="afar", distribution="scripted", version="0", environment_ids=(AFAR, "other/Env-v0"))
    monkeypatch.setattr(routes_service, "find_packs", lambda: [pack])
    return start_service(environments=[AFAR, "other/Env-v0"])


def test_lists_and_trains_in_the_services_environments(client):
    assert [one.id for one in client.environments()] == [AFAR, "other/Env-v0"]
    job = client.train(client.environments()[0].id, steps=1)
    assert (job.wait().step, job.spec.rollout) == (1, "server")


def test_lists_the_services_environments_on_the_command_line(service, tg_run):
    assert AFAR in tg_run("envs", "--service").stdout
    listed = json.loads(tg_run("envs", "--service", "--json").stdout)["environments"]
    assert listed[0] == {"id": AFAR, "distribution": "scripted", "version": "0"}
    assert tg_run("envs", "--service", "nowhere").exit_code == 2
