"""Keys reach their own session alone, and end with it."""

import json
import socket
from urllib.parse import urlsplit

from tests.tinkergym.recording.sessions import BODY, played, posted, said, user


def test_refuses_foreign_keys_unknown_roles_and_ended_sessions():
    kept = []

    def play_one(session):
        kept.append(session)
        said(session, user("a"))
        answers = [
            posted(session, BODY, key="guess"),
            posted(session, BODY, path="embeddings"),
            posted(session, {"model": "any"}),
        ]
        kept.append([(one.status_code, one.json()["error"]["code"]) for one in answers])
        return 1.0

    played(play_one)
    assert [status for status, _ in kept[1]] == [401, 404, 400]
    assert "key" not in repr(kept[0])


def test_asks_for_a_body_that_is_announced():
    def announce(session):
        url, body = urlsplit(session.url()), json.dumps(BODY).encode()
        head = f"POST {url.path}/chat/completions HTTP/1.1\r\nexpect: 100-continue\r\n"
        head += f"authorization: Bearer {session.key}\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection((url.hostname, url.port), timeout=30) as line:
            line.sendall(head.encode())
            asked = line.recv(100)
            line.sendall(body)
            return float(asked.startswith(b"HTTP/1.1 100") and b" 200 " in line.recv(100))

    assert played(announce)["agent"].episode_return == 1.0
