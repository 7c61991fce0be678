"""Tasksets of verifiers' v1 interface, for `verifiers_worker.py`. Imports nothing from tinkergym.

In verifiers a harness plays a task against an endpoint. Here the harness is a chat loop in this process, and
the endpoint passes each request on to the policy. Everything in between is verifiers' own: the task's hooks,
tools, stop conditions and rewards.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
import types
import uuid
from contextlib import AsyncExitStack
from typing import Any

# This process has verifiers and its httpx, but not tinkergym's one door to HTTP.
import httpx
from aiohttp import web
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.utils.loaders import env_config_type, load_environment, resolve_env_config

MOST_TASKS = 1000
"""Limit for a taskset without an end."""
HARNESS = "tinkergym_policy_harness"
_TRUNCATED = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length")


class V1Environment:
    """A taskset and the environment that plays it."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        """Load it; the arguments are the taskset's settings."""
        install_harness()
        fields = env_config_type(name).model_fields
        roles = [role for role, field in fields.items() if isinstance(field.default, AgentConfig)]
        # On this machine, in this process: the policy answers, and none of its output is executed.
        seat = {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}}
        config = {"taskset": {"id": name, **arguments}, **dict.fromkeys(roles, seat)}
        self._environment = load_environment(resolve_env_config(config))
        self._roles = roles
        self._tasks: list[Any] = []
        self._asks: dict[str, Any] = {}
        self._ready: asyncio.Future[str] | None = None

    def about(self, split: str) -> dict[str, Any]:
        """Describe it; prompts and tools belong to the tasks."""
        return {
            "system_prompt": "",
            "tools": [],
            "has_split": split == "train",
            "refused": "it has several agents" if len(self._roles) != 1 else "",
        }

    def rows(self, split: str) -> list[Any]:
        """Return its tasks."""
        del split
        if not self._tasks:
            taskset = self._environment.taskset
            tasks = itertools.islice(iter(taskset), MOST_TASKS) if taskset.INFINITE else iter(taskset)
            self._tasks = list(tasks)
        return self._tasks

    def as_json(self, row: Any) -> Any:
        """Return a task's data."""
        return row.data.model_dump()

    async def play(self, row: Any, ask: Any) -> dict[str, Any]:
        """Play a task and return its result."""
        if self._ready is None:
            self._ready = asyncio.ensure_future(self._serve())
        episode = uuid.uuid4().hex
        self._asks[episode] = ask
        try:
            client = EvalClientConfig(base_url=await self._ready, api_key_var="TINKERGYM_NO_KEY")
            played = await self._environment.run_episode(row, ModelContext(model=episode, client=client))
        finally:
            del self._asks[episode]
        return _outcome(played)

    async def _serve(self) -> str:
        """Listen for requests to the policy, keep verifiers' own servers open, and return our URL."""

        async def complete(request: Any) -> Any:
            body = await request.json()
            said = await self._asks[body["model"]](body["messages"], _functions(body.get("tools")))
            return web.json_response(_completion(body["model"], said))

        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", complete)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._serving = self._environment.serving()
        await self._serving.__aenter__()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/v1"


def _functions(tools: Any) -> list[dict[str, Any]]:
    return [tool["function"] for tool in tools or []]


def _completion(model: str, said: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in said["tool_calls"]
    ]
    message = {"role": "assistant", "content": said["content"], **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return {
        "id": uuid.uuid4().hex,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _outcome(episode: Any) -> dict[str, Any]:
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors or not episode.traces:
        error = errors[0] if errors else None
        text = f"{error.type}: {error.message}" if error else "no agent ran"
        return {"error": text, "traceback": getattr(error, "traceback", None) or ""}
    (trace,) = episode.traces
    stop = str(trace.stop_condition or "")
    metrics = {**{name: one.score for name, one in trace.rewards.items() if one}, **trace.metrics}
    return {
        "ended": True,
        "reward": trace.reward,
        "metrics": metrics,
        "truncated": stop.startswith(_TRUNCATED),
        "stop": stop,
        "messages": [],
    }


def install_harness() -> None:
    """Register the harness with verifiers under its id."""
    if HARNESS in sys.modules:
        return

    class PolicyHarnessConfig(HarnessConfig):  # type: ignore[misc]
        """There are no settings."""

    class PolicyHarness(Harness[PolicyHarnessConfig]):  # type: ignore[misc]
        """A chat loop with the task's tools."""

        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_MCP = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(  # noqa: PLR0917 - as verifiers declares it
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: dict[str, str],
            data: Any,
        ) -> Any:
            """Chat until the policy calls no tool, or verifiers refuses a turn."""
            del trace, runtime
            system, prompt = self.resolve_prompt(data)
            messages = [{"role": "system", "content": system}] if system else []
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += [message_to_wire(message) for message in prompt or []]
            servers = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
            async with AsyncExitStack() as stack:
                tools, dispatch, opened = await connect_mcp(servers, stack)
                refused = await chat_loop(endpoint, secret, ctx.model, messages, (tools, dispatch, opened))
            return ProgramResult(exit_code=int(bool(refused)), stdout="", stderr=refused)

    module = types.ModuleType(HARNESS)
    module.PolicyHarness = PolicyHarness  # type: ignore[attr-defined]
    module.__all__ = ["PolicyHarness"]  # type: ignore[attr-defined]
    sys.modules[HARNESS] = module


async def chat_loop(
    endpoint: str, secret: str, model: str, messages: list[dict[str, Any]], given: tuple[Any, Any, Any]
) -> str:
    """Chat; return verifiers' message if it refused a turn, else nothing."""
    tools, dispatch, servers = given
    async with httpx.AsyncClient(timeout=None, headers={"Authorization": f"Bearer {secret}"}) as client:
        while True:
            body = {"model": model, "messages": messages, **({"tools": tools} if tools else {})}
            response = await client.post(f"{endpoint}/chat/completions", json=body)
            if response.status_code != httpx.codes.OK:
                return response.text[:2000]
            message = response.json()["choices"][0]["message"]
            messages.append({name: value for name, value in message.items() if value is not None})
            for call in message.get("tool_calls") or []:
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                if name in dispatch:
                    content = await call_mcp(servers, dispatch, name, json.loads(arguments or "{}"))
                else:
                    content = f"error: unknown tool {name!r}"
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
            if not message.get("tool_calls"):
                return ""
