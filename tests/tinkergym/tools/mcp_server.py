"""A real MCP server for the tests."""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("shop")


@server.tool()
def price(what: str, pieces: int = 1) -> int:
    """Return the price of some pieces of a thing."""
    return len(what) * pieces


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("sold out")


@server.tool()
def wait() -> str:
    """Wait."""
    time.sleep(600)
    return "late"


@server.tool()
def die() -> str:
    """Take the server down."""
    print("goodbye", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def process() -> str:
    """Return the server's process id and what it knows of our secrets."""
    return f"{os.getpid()} {os.environ.get('SECRET')} {os.environ.get('GIVEN')}"


if __name__ == "__main__":
    server.run()
