"""Settings of an environment server: one frozen record, validated on creation."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tinkergym.serving.wire_protocol import MESSAGE_BYTES

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class ServerSettings(BaseModel):
    """How an environment server runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    environment_id: str = Field(min_length=1)
    entry_point: str = ""
    """`module:ClassName` to register under that id first; empty if it is already registered."""
    kwargs: dict[str, Any] = {}
    """Arguments of the environment's constructor."""
    host: str = Field("127.0.0.1", min_length=1)
    """The address to listen on. Beyond loopback the token is sent unencrypted: put a TLS proxy in front."""
    port: int = Field(8300, ge=0, le=65535)
    """0 takes any free one."""
    token: str = Field(min_length=8, max_length=512, pattern=r"^[\x21-\x7e]+$", repr=False)
    """The token that every client must present."""
    capacity: int = Field(64, ge=1)
    """The most sessions, that is environments, at once."""
    idle_timeout_seconds: float = Field(300.0, gt=0)
    """A session without requests for this long is closed, even if its client is connected."""
    lease_seconds: float = Field(30.0, gt=0)
    """How long the place of a client with a lost connection is kept."""
    step_timeout_seconds: float = Field(60.0, gt=0)
    """Time limit for one call of an environment; the first one, which also creates it, has twice as long."""
    open_timeout_seconds: float = Field(10.0, gt=0)
    """Time limit for opening a session on a connection, and for receiving the header of its request."""
    max_message_bytes: int = Field(MESSAGE_BYTES, ge=1024)
    """Longest message in either direction."""
    processes: bool = False
    """Whether each environment runs in its own process instead of a thread."""

    @model_validator(mode="after")
    def _a_hang_is_found_before_a_session_is_idle(self) -> Self:
        if self.idle_timeout_seconds < 1.0:
            raise ValueError("idle_timeout_seconds below 1 would close sessions between steps")
        return self

    @property
    def most_connections(self) -> int:
        """How many connections are held: one per session, as many that are coming back, and some that ask."""
        return 2 * self.capacity + 16

    @property
    def only_this_machine(self) -> bool:
        """Whether no other machine can connect."""
        return self.host in _LOOPBACK
