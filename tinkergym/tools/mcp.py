"""Tools of an MCP server: a program that speaks the Model Context Protocol on its standard input and output.

Needs the extra `mcp`. The server runs as a child process and the connection in its own thread, so its tools
can be called from any thread, like others.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from tinkergym.basics.extras import import_extra
from tinkergym.errors import (
    EnvironmentInfrastructureError,
    InvalidRequestError,
    ToolArgumentsError,
    ToolError,
)
from tinkergym.tools.definition import Tool

_MOST_PAGES = 100
_CLOSING_SECONDS = 10.0
_SHOWN_LOG_CHARACTERS = 2_000


def mcp_tools(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout_seconds: float = 30.0,
    only: Sequence[str] | None = None,
) -> McpTools:
    """Start a server and return its tools; close them, or use `with`, to end it.

    Args:
        command: The program and its arguments, such as `["python", "my_server.py"]`.
        env: Variables for the server. It inherits only a few harmless ones, so pass API keys here.
        cwd: The server's working folder.
        timeout_seconds: Time limit for the start, and for each call.
        only: Names of the tools to offer; None for all.

    Raises:
        InvalidRequestError: The command is empty, `only` names a tool that the server does not have, or the
            package `mcp` is not installed.
        EnvironmentInfrastructureError: The server does not start.

    Example:
        >>> with mcp_tools(["python", "my_server.py"]) as tools:
        ...     env = ToolCalling(env, tools)
    """
    command = list(command)
    if not command or not all(isinstance(part, str) for part in command):
        raise InvalidRequestError("must be a list of strings: a program and its arguments", field="command")
    connection = _Connection(command, dict(env or {}), cwd, timeout_seconds)
    tools = McpTools(connection)
    missing = sorted(set(only or ()) - {tool.name for tool in tools})
    if missing:
        tools.close()
        have = ", ".join(tool.name for tool in tools)
        raise InvalidRequestError(f"the server has no tool {missing[0]}; it has: {have}", field="only")
    if only is not None:
        tools[:] = [tool for tool in tools if tool.name in only]
    return tools


class McpTools(list[Tool]):
    """The tools of one server, which can be closed."""

    def __init__(self, connection: _Connection) -> None:
        """Use the tools of a running server."""
        super().__init__(McpTool(connection, listed) for listed in connection.listed)
        self._connection = connection

    def close(self) -> None:
        """End the server; may be called twice."""
        self._connection.close()

    def __enter__(self) -> Self:
        """Return the tools."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        """End the server."""
        self.close()


class McpTool(Tool):
    """One tool of a server."""

    # The connection has its own thread and time limit.
    runs_beside = False

    def __init__(self, connection: _Connection, listed: Any) -> None:
        """Read the server's description of the tool."""
        self.name = listed.name
        self.description = listed.description or listed.title or listed.name
        self.parameters = listed.input_schema
        self._connection = connection
        jsonschema = _package("jsonschema")
        self._validator = jsonschema.validators.validator_for(self.parameters)(self.parameters)

    def call(self, arguments: Mapping[str, Any]) -> str:
        """Call the server."""
        fault = next(self._validator.iter_errors(dict(arguments)), None)
        if fault is not None:
            where = ".".join(map(str, fault.absolute_path)) or "the arguments"
            raise ToolArgumentsError(f"{self.name}: {where}: {fault.message[:500]}")
        result = self._connection.call(self.name, dict(arguments))
        text = "\n".join(map(_text, result.content))
        if result.is_error:
            raise ToolError(text or f"{self.name} failed without a message")
        return text or "done"

    def close(self) -> None:
        """End the server, and so all its tools."""
        self._connection.close()


class _Connection:
    """A server, and the thread of its connection."""

    def __init__(self, command: list[str], env: dict[str, str], cwd: str | None, seconds: float) -> None:
        self._mcp = _package("mcp")
        self.listed: list[Any] = []
        self._command, self._env, self._cwd, self._seconds = command, env, cwd, seconds
        self._client: Any = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        # The server's log, to show when it fails.
        self._log: TextIO = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._thread = threading.Thread(target=self._run, name=f"mcp {Path(command[0]).name}", daemon=True)
        self._thread.start()
        self.close = weakref.finalize(self, _end, self._loop, self._stop, self._thread)
        try:
            self._ready.result(seconds + _CLOSING_SECONDS)
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception):
                raise
            late = isinstance(error, TimeoutError)
            why = f"it did not respond for {seconds:g} s" if late else f"{type(error).__name__}: {error}"
            raise EnvironmentInfrastructureError(
                f"the MCP server `{' '.join(command)}` did not start: {why}{self._last_words()}"
            ) from error

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool and return the server's result."""
        if not self._thread.is_alive():
            raise self._gone("it has ended")
        waiting = asyncio.run_coroutine_threadsafe(self._client.call_tool(name, arguments), self._loop)
        try:
            return waiting.result(self._seconds)
        except concurrent.futures.TimeoutError:
            waiting.cancel()
            raise ToolError(f"{name} did not return within {self._seconds:g} s") from None
        except self._mcp.MCPError as error:
            if error.error.code == self._mcp.types.CONNECTION_CLOSED:
                raise self._gone(str(error)) from error
            raise ToolError(str(error)) from error
        except (OSError, RuntimeError, concurrent.futures.CancelledError) as error:
            raise self._gone(f"{type(error).__name__}: {error}") from error

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except (
            BaseException
        ) as error:  # Reported to the caller that waits for the start; later, a call notices the end.
            if not self._ready.done():
                self._ready.set_exception(_first(error))
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        mcp, (program, *arguments) = self._mcp, self._command
        server = mcp.StdioServerParameters(command=program, args=arguments, env=self._env, cwd=self._cwd)
        async with (
            asyncio.timeout(self._seconds) as limit,
            mcp.Client(mcp.stdio_client(server, errlog=self._log)) as client,
        ):
            cursor = None
            for _ in range(_MOST_PAGES):
                page = await client.list_tools(cursor=cursor)
                self.listed += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
            limit.reschedule(None)
            self._client = client
            self._ready.set_result(None)
            await self._stop.wait()

    def _gone(self, why: str) -> EnvironmentInfrastructureError:
        command = " ".join(self._command)
        return EnvironmentInfrastructureError(
            f"the MCP server `{command}` is gone: {why}{self._last_words()}"
        )

    def _last_words(self) -> str:
        self._log.seek(0)
        words = self._log.read()[-_SHOWN_LOG_CHARACTERS:].strip()
        return f"\nit logged:\n{words}" if words else ""


def _package(name: str) -> Any:
    return import_extra(name, "MCP tools need the package mcp", extra="mcp", error=InvalidRequestError)


def _end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, thread: threading.Thread) -> None:
    """End a connection. Takes only its parts, so that it can run when the connection is garbage-collected."""
    try:
        loop.call_soon_threadsafe(stop.set)
    except RuntimeError:  # The loop is closed: the server has ended.
        return
    thread.join(_CLOSING_SECONDS)


def _first(error: BaseException) -> BaseException:
    """Return the first error inside exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _text(content: Any) -> str:
    if content.type == "text":
        return str(content.text)
    resource = getattr(content, "resource", None)
    text = getattr(resource, "text", None)
    return text if isinstance(text, str) else f"[{content.type} that cannot be shown as text]"
