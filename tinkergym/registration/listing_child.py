"""Creates environments for a list, one after the other, in a process that they may crash.

Requests are ids on stdin, responses objects on stdout, one JSON value per line. Output of environments goes
to stderr.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import sys
import threading
from typing import IO, Any

# The parent reports what is refused.
logging.getLogger("tinkergym.registration.packs").setLevel(logging.ERROR)

import gymnasium as gym  # noqa: E402 - as above

from tinkergym.errors import InvalidEnvironmentError, TinkerGymError  # noqa: E402
from tinkergym.registration.environments import make  # noqa: E402
from tinkergym.registration.packs import registered_games  # noqa: E402
from tinkergym.tasks.grid import cell_of  # noqa: E402
from tinkergym.user_code.quoting import quoted, raised  # noqa: E402


def main() -> None:
    """Respond until stdin ends."""
    questions, answers = _own(sys.stdin, "r"), _own(sys.stdout, "w")
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.dup2(2, 1)
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(questions, asked), daemon=True).start()
    games = frozenset(registered_games())
    print(json.dumps("ready"), file=answers, flush=True)
    while True:
        env_id = asked.get()
        print(json.dumps({"id": env_id, **_describe(env_id, games)}), file=answers, flush=True)


def _own(stream: IO[str], mode: str) -> IO[str]:
    return os.fdopen(os.dup(stream.fileno()), mode)


def _listen(questions: IO[str], asked: queue.SimpleQueue[str]) -> None:
    for line in questions:
        asked.put(json.loads(line))
    # Nothing waits for a response any more, perhaps because the parent was killed; and an environment may
    # hang.
    os._exit(0)


def _describe(env_id: str, games: frozenset[str]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    try:
        env = make(env_id)
        said["observation_space"] = _space_text(env.observation_space)
        said["action_space"] = _space_text(env.action_space)
        said["splits"] = [quoted(split) for split in (env.metadata or {}).get("splits", ())]
        with contextlib.suppress(InvalidEnvironmentError):
            cell = cell_of(env)
            said |= {"turns": cell.turns, "data": cell.data}
        named = (env.spec.kwargs.get("game") if env.spec else None, re.sub(r"Vs(-v\d+)$", r"\1", env_id))
        said["game"] = next((name for name in named if name in games), "")
        env.close()
    except TinkerGymError as error:
        said["error"] = quoted(error.message, most=2000)
    # Foreign code: whatever it raises becomes an entry of the list. Ctrl-C does not arrive here.
    except BaseException as error:
        said["error"] = raised(error)
    return said


def _space_text(space: object) -> str:
    """Return a short description of a space: `Text`, `Dict(text: Text)`, `Discrete(4)`."""
    if isinstance(space, gym.spaces.Dict):
        return f"Dict({', '.join(f'{key}: {_space_text(part)}' for key, part in space.spaces.items())})"
    if isinstance(space, gym.spaces.Tuple):
        return f"Tuple({', '.join(map(_space_text, space.spaces))})"
    # The length limit of a text is rarely of interest.
    return type(space).__name__ if type(space).__module__.startswith("tinkergym.") else quoted(space)
