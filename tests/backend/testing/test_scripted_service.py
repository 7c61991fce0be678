"""A job of a scripted service fails as a real one does; a client that hangs up is no news."""

import socket

import pytest

import tinkergym as tg
from backend.testing.scripted_service import ScriptedService
from tinkergym.errors import JobFailedError


def test_hears_nothing_of_a_client_that_hangs_up(capfd):
    with ScriptedService() as service:
        port = int(service.url.rpartition(":")[2])
        head = ["POST /v1/sample HTTP/1.1", f"Authorization: Bearer {service.api_key}", "Content-Length: 9"]
        with socket.create_connection(("127.0.0.1", port), timeout=60.0) as connection:
            connection.sendall("\r\n".join([*head, "", "{"]).encode())
            connection.shutdown(socket.SHUT_WR)
    assert capfd.readouterr().err == ""


class Brittle(tg.SingleTurnEnv):
    """Fails in every episode but those of even seeds."""

    fails_always = False

    def ask(self, options):
        return "Say ok."

    def score(self, answer):
        if self.fails_always or self.np_random_seed % 2:
            raise KeyError("colour")
        return 1.0


class Broken(Brittle):
    fails_always = True


def test_fails_job_of_broken_environment_as_the_real_service_does():
    with ScriptedService() as service, tg.Client(service.url, service.api_key) as client:
        job = client.train(Broken, steps=1, algorithm=tg.GRPO(group_size=2, groups_per_step=1))
        failed = pytest.raises(JobFailedError, match=r"environment_error.*KeyError: 'colour'")
        with failed, pytest.warns(UserWarning, match="environment_error, 2 times"):
            job.wait(progress=False)
        assert job.view().error.field == "max_failed_fraction"
        assert job.steps() == []


def test_counts_failed_episode_instead_of_a_zero_reward():
    with ScriptedService() as service, tg.Client(service.url, service.api_key) as client:
        # The scripted seeds are consecutive, so one of the two groups fails.
        job = client.train(Brittle, steps=1, algorithm=tg.GRPO(group_size=2, groups_per_step=2))
        with pytest.warns(UserWarning, match="environment_error, 2 times"):
            job.wait(progress=False)
        (step,) = job.steps()
        assert (step.reward_mean, step.episodes, step.failed_episodes) == (1.0, 4, 2)
        assert step.stop_reasons == {"environment_error": 2, "terminated": 2}
