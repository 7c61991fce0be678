"""A job of a scripted service fails as a real one does; a client that hangs up is no news."""

import socket
import struct
import threading
from http.server import ThreadingHTTPServer

import pytest

import tinkergym as tg
from tinkergym.errors import JobFailedError
from tinkergym.testing.scripted_service import ScriptedService


def test_a_client_that_hangs_up_leaves_no_traceback(capfd, monkeypatch):
    begun, ended = threading.Event(), threading.Event()
    process = ThreadingHTTPServer.process_request_thread

    def watched(self, *arguments):
        begun.set()
        process(self, *arguments)
        ended.set()

    monkeypatch.setattr(ThreadingHTTPServer, "process_request_thread", watched)
    with ScriptedService() as service:
        host, port = service.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"GET /v1/health HTTP/1.1\r\n")
            # A reset instead of an orderly end: what a killed program leaves.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            assert begun.wait(20)
        assert ended.wait(20)
    assert "Exception" not in capfd.readouterr().err


def test_a_client_that_hangs_up_while_it_sends_is_no_news(capfd):
    with ScriptedService() as service:
        port = int(service.url.rpartition(":")[2])
        head = ["POST /v1/sample HTTP/1.1", f"Authorization: Bearer {service.api_key}", "Content-Length: 9"]
        with socket.create_connection(("127.0.0.1", port), timeout=60.0) as connection:
            connection.sendall("\r\n".join([*head, "", "{"]).encode())
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""  # closed without an answer
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


def test_a_broken_environment_fails_the_job_as_in_the_real_service():
    with ScriptedService() as service, tg.Client(service.url, service.api_key) as client:
        job = client.train(Broken, steps=1, algorithm=tg.GRPO(group_size=2, groups_per_step=1))
        failed = pytest.raises(JobFailedError, match=r"environment_error.*KeyError: 'colour'")
        with failed, pytest.warns(UserWarning, match="environment_error, 2 times"):
            job.wait(progress=False)
        assert job.view().error.field == "max_failed_fraction"
        assert job.steps() == []


def test_a_failed_episode_is_counted_and_is_no_reward_of_zero():
    with ScriptedService() as service, tg.Client(service.url, service.api_key) as client:
        # The scripted seeds are consecutive, so one of the two groups fails.
        job = client.train(Brittle, steps=1, algorithm=tg.GRPO(group_size=2, groups_per_step=2))
        with pytest.warns(UserWarning, match="environment_error, 2 times"):
            job.wait(progress=False)
        (step,) = job.steps()
        assert (step.reward_mean, step.episodes, step.failed_episodes) == (1.0, 4, 2)
        assert step.stop_reasons == {"environment_error": 2, "terminated": 2}
