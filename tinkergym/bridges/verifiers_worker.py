"""The process in which a verifiers environment runs: a Python with verifiers runs this file.

A verifiers environment drives its model: it requests completions until it is done. Here each request is
passed to the other side, which answers when it is stepped. Many episodes run in one process, on one event
loop, as in verifiers. Requests and responses are lines of JSON. Nothing is imported from tinkergym, so a
different Python can run this.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.util
import json
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any

MOST_TURNS = "max_turns_reached"
TRUNCATED = frozenset(
    {
        MOST_TURNS,
        "timeout_reached",
        "prompt_too_long",
        "max_total_completion_tokens_reached",
    }
)
"""verifiers' stop conditions that are limits rather than the end of a task."""


def make_client(ask: Any) -> Any:
    """Return a client of verifiers whose completions come from `ask(messages, tools)`."""
    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage, ToolCall

    class PolicyClient(Client):  # type: ignore[misc]
        """Passes requests to the other side."""

        async def get_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **more: Any
        ) -> Any:
            del sampling_args, more
            said = await ask([plain(message) for message in prompt], [plain(tool) for tool in tools or []])
            calls = [ToolCall(**call) for call in said["tool_calls"]]
            message = ResponseMessage(
                content=said["content"],
                tool_calls=calls or None,
                finish_reason="tool_calls" if calls else "stop",
                is_truncated=False,
            )
            return Response(id=uuid.uuid4().hex, created=int(time.time()), model=model, message=message)

        def setup_client(self, config: Any) -> Any:
            raise NotImplementedError

        async def to_native_tool(self, tool: Any) -> Any:
            raise NotImplementedError

        async def to_native_prompt(self, messages: Any) -> Any:
            raise NotImplementedError

        async def get_native_response(self, *arguments: Any, **more: Any) -> Any:
            raise NotImplementedError

        async def raise_from_native_response(self, response: Any) -> None:
            raise NotImplementedError

        async def from_native_response(self, response: Any) -> Any:
            raise NotImplementedError

        async def close(self) -> None:
            """Do nothing."""

    return PolicyClient(None)


def plain(value: Any) -> Any:
    """Return a message or a tool as JSON values."""
    dumped = value.model_dump() if hasattr(value, "model_dump") else dict(value)
    return {name: part for name, part in dumped.items() if part is not None}


class LegacyEnvironment:
    """An environment with `rollout` and a rubric: verifiers' v0."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def about(self, split: str) -> dict[str, Any]:
        """Describe it, and say whether it has a split."""
        compares = bool(getattr(self._made, "requires_group_rollouts", False))
        refused = "its rubric compares rollouts of a group with each other" if compares else ""
        return {
            "system_prompt": getattr(self._made, "system_prompt", None) or "",
            "tools": [plain(tool) for tool in getattr(self._made, "tool_defs", None) or []],
            "has_split": split == "train" or self._holds_out(),
            "refused": refused if callable(getattr(self._made, "rollout", None)) else "it has no rollout()",
        }

    def rows(self, split: str) -> Any:
        """Return one of its two datasets."""
        return self._made.get_eval_dataset() if split == "eval" else self._made.get_dataset()

    def as_json(self, row: Any) -> Any:
        """Return a row as JSON values, approximately."""
        return row

    async def play(self, row: Any, ask: Any) -> dict[str, Any]:
        """Play a row and return its result."""
        state = await self._made.rollout(dict(row), make_client(ask), "policy", {})
        if state.get("error") is None:
            await self._made.rubric.score_rollout(state)
            await self._made.rubric.cleanup(state)
        # Of an environment with one turn it is no limit, but the end of the task.
        one_turn = getattr(self._made, "max_turns", None) == 1
        return outcome(state, limits=TRUNCATED - {MOST_TURNS} if one_turn else TRUNCATED)

    def _holds_out(self) -> bool:
        # Without an eval dataset, get_eval_dataset() returns the training tasks.
        build = getattr(self._made, "build_eval_dataset", None)
        if callable(build):
            build()
        return getattr(self._made, "eval_dataset", None) is not None


class Episode:
    """A rollout, and what the other side must know next."""

    def __init__(self, environment: Any, row: Any) -> None:
        self._environment, self._row = environment, row
        self._news: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._one_at_a_time = asyncio.Lock()
        self._reply: asyncio.Future[dict[str, Any]] | None = None
        self._task = asyncio.create_task(self._run())

    async def next(self) -> dict[str, Any]:
        """Return its request or its result."""
        return await self._news.get()

    def answer(self, said: dict[str, Any]) -> None:
        """Pass it the requested completion."""
        reply, self._reply = self._reply, None
        if reply is None:
            raise RuntimeError("nothing was asked for")
        reply.set_result(said)

    def abandon(self) -> None:
        """End it; its own cleanup runs."""
        self._task.cancel()

    async def _ask(self, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
        async with self._one_at_a_time:
            self._reply = asyncio.get_running_loop().create_future()
            self._news.put_nowait({"messages": messages, "tools": tools})
            return await self._reply

    async def _run(self) -> None:
        try:
            self._news.put_nowait(await self._environment.play(self._row, self._ask))
        except Exception as error:  # environments raise arbitrary errors
            self._news.put_nowait(failure(error))


def outcome(state: Any, *, limits: Collection[str]) -> dict[str, Any]:
    """Return a rollout's result; a stop condition in `limits` truncates it."""
    if (error := state.get("error")) is not None:
        return failure(error)
    stop = str(state.get("stop_condition") or "")
    completion = [plain(message) for message in state.get("completion") or []]
    spoke = [i for i, message in enumerate(completion) if message.get("role") == "assistant"]
    return {
        "ended": True,
        "reward": state["reward"],
        "metrics": {str(name): value for name, value in (state.get("metrics") or {}).items()},
        "truncated": bool(state.get("is_truncated")) or stop in limits,
        "stop": stop,
        "messages": completion[spoke[-1] + 1 :] if spoke else [],
    }


def failure(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON values."""
    lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-5)
    return {"error": f"{type(error).__name__}: {error}", "traceback": "".join(lines)}


def load(name: str, arguments: dict[str, Any]) -> Any:
    """Load an environment: the id of a taskset (v1) or for `load_environment` (v0), or `module:attribute`."""
    module, _, attribute = name.partition(":")
    if attribute:
        return LegacyEnvironment(getattr(importlib.import_module(module), attribute)(**arguments))
    import verifiers

    if is_taskset(name):
        return own_module("bridges/verifiers_v1.py").V1Environment(name, arguments)
    return LegacyEnvironment(verifiers.load_environment(name, **arguments))


def own_module(path: str) -> Any:
    """Import a file of tinkergym, which is not installed here.

    This file's folder is not on the path, because it contains a different verifiers.py.
    """
    file = Path(__file__).parents[1] / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_taskset(name: str) -> bool:
    """Return whether a package exports a taskset of v1."""
    if importlib.util.find_spec("verifiers.v1") is None:
        return False
    from verifiers.v1.utils.loaders import taskset_class

    try:
        taskset_class(name)
    except (ImportError, AttributeError, TypeError):
        return False
    return True


class Worker:
    """A verifiers environment and its running episodes."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        """Load it."""
        self.environment = load(name, arguments)
        self._episodes: dict[str, Episode] = {}
        self._rows: dict[str, Any] = {}

    async def about(self, split: str) -> dict[str, Any]:
        """Describe the environment. Whether it has a split may only be known once that is loaded."""
        return dict(await asyncio.to_thread(self.environment.about, split))

    async def rows(self, split: str) -> dict[str, Any]:
        """Return the number of rows in a split."""
        if split not in self._rows:
            self._rows[split] = await asyncio.to_thread(self.environment.rows, split)
        return {"count": len(self._rows[split])}

    async def fingerprint(self, split: str) -> dict[str, Any]:
        """Return the SHA-256 of a split's rows."""
        await self.rows(split)
        digest = hashlib.sha256()
        for row in self._rows[split]:
            text = json.dumps(self.environment.as_json(row), sort_keys=True, default=str)
            digest.update(text.encode() + b"\n")
        return {"fingerprint": digest.hexdigest()}

    async def begin(self, episode: str, split: str, row: int) -> dict[str, Any]:
        """Start an episode and return its first request."""
        await self.rows(split)
        self._episodes[episode] = started = Episode(self.environment, self._rows[split][row])
        return await self._after(episode, started)

    async def answer(self, episode: str, said: dict[str, Any]) -> dict[str, Any]:
        """Answer an episode's request, and return the next one."""
        playing = self._episodes[episode]
        playing.answer(said)
        return await self._after(episode, playing)

    async def abandon(self, episode: str) -> dict[str, Any]:
        """End an episode early."""
        playing = self._episodes.pop(episode, None)
        if playing is not None:
            playing.abandon()
        return {}

    async def _after(self, episode: str, playing: Episode) -> dict[str, Any]:
        news = await playing.next()
        if "messages" not in news or "ended" in news:
            self._episodes.pop(episode, None)
        return news


async def serve(worker: Worker, questions: Any, answers: Any) -> None:
    """Process requests, many at a time, until there are no more."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()
    tasks: set[asyncio.Task[None]] = set()

    def read() -> None:
        for line in questions:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    async def reply(question: dict[str, Any]) -> None:
        number, do = question.pop("i"), question.pop("do")
        try:
            answer = await getattr(worker, do)(**question)
        except Exception as error:  # environments raise arbitrary errors
            answer = failure(error)
        write(answers, {**answer, "i": number})

    threading.Thread(target=read, name="questions", daemon=True).start()
    while line := await lines.get():
        task = asyncio.create_task(reply(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def write(answers: Any, answer: dict[str, Any]) -> None:
    """Write a response."""
    answers.write(json.dumps(answer, default=str) + "\n")
    answers.flush()


def main() -> None:
    """Run the process: the arguments are the environment's name and its arguments as JSON."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the environment's output is not a response
    own_module("user_code/parent_watch.py").end_with_parent()
    try:
        worker = Worker(sys.argv[1], json.loads(sys.argv[2]))
    except Exception as error:  # packages raise arbitrary errors
        write(answers, {**failure(error), "i": -1})
        return
    write(answers, {"i": -1})
    asyncio.run(serve(worker, sys.stdin, answers))


if __name__ == "__main__":
    main()
    # Environments leave threads and loops behind that would keep the process alive.
    os._exit(0)
