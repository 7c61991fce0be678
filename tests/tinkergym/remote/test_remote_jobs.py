"""Training behind an environment server: what a client sends, and what it keeps to itself."""

import pickle

import tinkergym as tg
from tests.environment_server import TOKEN, environment_server
from tinkergym.rollout.local_environment import describe

REMOTE, BOARD = "tinkergym/Remote-v0", "board/TicTacToeVs-v0"


def test_takes_address_as_an_environment():
    found = describe("ws://127.0.0.1:8300", {"token": "t"})
    assert (found.ref.id, found.ref.kwargs) == (REMOTE, {"url": "ws://127.0.0.1:8300", "token": "t"})
    assert not found.only_here
    assert pickle.loads(pickle.dumps(found.make))


def trained(client, url, *, group_size, groups_per_step):
    """Return a job of one step whose episodes this process played behind the server."""
    algorithm = tg.GRPO(group_size=group_size, groups_per_step=groups_per_step)
    job = client.train(url, env_kwargs={"token": TOKEN}, rollout="client", steps=1, algorithm=algorithm)
    job.wait()
    return job


def test_keeps_at_home_the_token_of_client_played_job(client, service):
    with environment_server(BOARD) as url:
        job = trained(client, url, group_size=2, groups_per_step=1)
        view = client.job(job.id).view()
    assert view.spec.environment.kwargs == {"url": url}
    assert view.state == "completed"


def test_rotates_episodes_where_server_has_fewer_places(client, service):
    with environment_server(BOARD, capacity=2) as url:
        job = trained(client, url, group_size=4, groups_per_step=2)
    reasons = [result.trajectory.stop_reason for result in service.jobs.get(job.id).results]
    assert len(reasons) == 8
    assert "environment_error" not in reasons
