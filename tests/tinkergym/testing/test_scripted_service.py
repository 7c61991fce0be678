"""A client that hangs up is nothing to write to a test's standard error about."""

import socket
import struct
import threading
import time

from tinkergym.testing.scripted_service import ScriptedService


def test_a_client_that_hangs_up_leaves_no_traceback(capfd):
    with ScriptedService() as service:
        host, port = service.url.removeprefix("http://").split(":")
        before = set(threading.enumerate())
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"GET /v1/health HTTP/1.1\r\n")
            # A reset instead of an orderly end: what a killed program leaves.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            while not (handlers := set(threading.enumerate()) - before):
                time.sleep(0.001)
        # Not joined: a thread that is seen here need not have begun yet.
        while handlers & set(threading.enumerate()):
            time.sleep(0.001)
    assert "Exception" not in capfd.readouterr().err
