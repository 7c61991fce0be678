"""An environment server in a thread of this process, on a real socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tinkergym.serving.making import description_of
from tinkergym.serving.server import listen, url_of, uvicorn_config
from tinkergym.serving.server_settings import ServerSettings

TOKEN = "a-token-for-tests"
_STOP_SECONDS = 60.0


@contextmanager
def environment_server(environment_id: str, **settings: Any) -> Iterator[str]:
    """Serve an environment that this process knows, with `TOKEN`, and yield the server's URL.

    Args:
        environment_id: The registered id.
        settings: Fields of `ServerSettings`.
    """
    wanted = ServerSettings(**{"environment_id": environment_id, "port": 0, "token": TOKEN, **settings})
    with listen(wanted.host, wanted.port) as listener:
        server = uvicorn.Server(uvicorn_config(wanted, description_of(wanted)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield url_of(wanted.host, listener)
        finally:
            server.should_exit = True
            thread.join(_STOP_SECONDS)
