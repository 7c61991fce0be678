"""What an environment server is told: one frozen record, checked where it is made."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tinkergym.serving.protocol import MESSAGE_BYTES

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class ServerSettings(BaseModel):
    """How an environment server runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    environment_id: str = Field(min_length=1)
    entry_point: str = ""
    """`module:ClassName` to register under that id first; empty if something registers it already."""
    kwargs: dict[str, Any] = {}
    """For the environment's constructor."""
    host: str = Field("127.0.0.1", min_length=1)
    """The address to listen on. Beyond loopback the token travels in the clear: put a TLS proxy in front."""
    port: int = Field(8300, ge=0, le=65535)
    """0 takes any free one."""
    token: str = Field(min_length=8, max_length=512, pattern=r"^[\x21-\x7e]+$", repr=False)
    """Every client must show it."""
    capacity: int = Field(64, ge=1)
    """Sessions, that is environments, at the same time."""
    idle_timeout_seconds: float = Field(300.0, gt=0)
    """A session that asks for nothing for so long is closed, though its client is connected."""
    lease_seconds: float = Field(30.0, gt=0)
    """How long the place of a client whose connection was lost is kept for it to come back."""
    step_timeout_seconds: float = Field(60.0, gt=0)
    """For one call of an environment; the first one, which also makes it, has twice as long."""
    open_timeout_seconds: float = Field(10.0, gt=0)
    """For a connection to open a session, and for the head of its request to arrive."""
    max_message_bytes: int = Field(MESSAGE_BYTES, ge=1024)
    """Longest message in either direction."""
    processes: bool = False
    """Whether each environment lives in a process of its own instead of a thread."""

    @model_validator(mode="after")
    def _a_hang_is_found_before_a_session_is_idle(self) -> Self:
        if self.idle_timeout_seconds < 1.0:
            raise ValueError("idle_timeout_seconds below 1 would close sessions between two steps")
        return self

    @property
    def most_connections(self) -> int:
        """How many connections are held: one per session, as many that are coming back, and some that ask."""
        return 2 * self.capacity + 16

    @property
    def only_this_machine(self) -> bool:
        """Whether nobody else can connect."""
        return self.host in _LOOPBACK
