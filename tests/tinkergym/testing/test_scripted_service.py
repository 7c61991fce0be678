"""A client that hangs up is nothing to write to a test's standard error about."""

import socket
import struct
import threading
from http.server import ThreadingHTTPServer

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
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall("\r\n".join([*head, "", "{"]).encode())
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""  # closed without an answer
    assert capfd.readouterr().err == ""
