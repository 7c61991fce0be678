"""A counterpart of an OpenEnv server: not OpenEnv, but a server that speaks its wire protocol.

`test_extras.sh` runs the same tests against servers of the real package. Its one environment shows a number,
and pays 1 for repeating it, twice in an episode.
"""

import contextlib
import http
import json
import random
import threading

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response
from websockets.sync.server import serve

SCHEMA = {
    "action": {
        "type": "object",
        "properties": {"message": {"type": "string"}, "metadata": {"type": "object"}},
        "required": ["message"],
    },
    "observation": {
        "type": "object",
        "properties": {"text": {"type": "string"}, "left": {"type": "integer"}},
    },
    "state": {"type": "object"},
}
TWO_FIELDS = {
    **SCHEMA,
    "action": {
        "type": "object",
        "properties": {"message": {"type": "string"}, "volume": {"type": "integer"}},
        "required": ["message", "volume"],
    },
}


class Counterpart:
    """The server; `url` is where it listens."""

    def __init__(self, *, schema=SCHEMA, places=64):
        self.schema, self.places = schema, places
        self.sessions = 0
        self.most_sessions = 0
        self.seeds = []
        self._lock = threading.Lock()

    def __enter__(self):
        self._server = serve(self._play, "127.0.0.1", 0, process_request=self._schema, max_size=2**24)
        self.url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()

    def _schema(self, connection, request):
        if request.path == "/schema":
            body = json.dumps(self.schema).encode()
            headers = Headers({"Content-Type": "application/json", "Content-Length": str(len(body))})
            return Response(http.HTTPStatus.OK, "OK", headers, body)
        return None if request.path == "/ws" else connection.respond(http.HTTPStatus.NOT_FOUND, "no")

    def _play(self, connection):
        with self._lock:
            free = self.sessions < self.places
            self.sessions += free
            self.most_sessions = max(self.most_sessions, self.sessions)
        if not free:
            connection.send(_error("CAPACITY_REACHED", "full"))
            return
        try:
            with contextlib.suppress(ConnectionClosed):
                self._session(connection)
        finally:
            with self._lock:
                self.sessions -= 1

    def _session(self, connection):
        rng, number, left = random.Random(), 0, 0
        while True:
            message = json.loads(connection.recv())
            kind, data = message["type"], message.get("data", {})
            if kind == "close":
                return
            reward = None
            if kind == "reset":
                self.seeds.append(data["seed"])
                rng, left = random.Random(data["seed"]), 2
            elif not isinstance(data.get("message"), str) or self._unknown(data):
                errors = [{"loc": ["message"], "msg": "Input should be a valid string"}]
                connection.send(_error("VALIDATION_ERROR", "Invalid message", errors=errors))
                continue
            elif data["message"] == "break":
                connection.send(_error("EXECUTION_ERROR", "broken on purpose"))
                continue
            elif data["message"] == "hang up":
                return
            elif data["message"] == "nonsense":
                connection.send('{"type": "observation", "data": 3}')
                continue
            else:
                left, reward = left - 1, float(data["message"].strip() == str(number))
                reward = 10**400 if data["message"] == "huge" else reward
            number = rng.randrange(10)
            shown = {"text": f"counterpart of OpenEnv says {number}", "left": left if left else None}
            answer = {"observation": shown, "reward": reward, "done": kind == "step" and not left}
            connection.send(json.dumps({"type": "observation", "data": answer}))

    def _unknown(self, data):
        kind = self.schema["action"]
        return not kind.get("additionalProperties") and set(data) - set(kind["properties"])


def _error(code, message, **more):
    return json.dumps({"type": "error", "data": {"message": message, "code": code, **more}})
