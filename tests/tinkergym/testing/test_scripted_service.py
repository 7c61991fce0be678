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
