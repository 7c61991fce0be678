"""Chat: the space of lists of messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import utils as _flattening
from gymnasium.vector.utils import shared_memory as _shared_memory
from gymnasium.vector.utils import space_utils as _batching

from tinkergym.errors import InvalidSpaceError
from tinkergym.messages import ROLES, Message, Role, message_fault
from tinkergym.spaces.text import Text, choose

_SAMPLED_MESSAGES = 3


class Chat(spaces.Space[list[Message]]):
    """Lists of messages, each a dict with `role`, `content` and optionally `name` and `tool_call_id`.

    As an observation, a list holds the messages that are *new* since the last action. Samples are short.

    Example:
        >>> [{"role": "tool", "content": "42", "tool_call_id": "call-1"}] in Chat()
        True
        >>> [{"role": "moderator", "content": "hush"}] in Chat()
        False
    """

    def __init__(
        self,
        max_messages: int = 1_000,
        *,
        min_messages: int = 0,
        roles: Sequence[Role] = ROLES,
        max_length: int = 1_000_000,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        """Create the space.

        Args:
            max_messages: The most messages.
            min_messages: The fewest messages.
            roles: The allowed roles.
            max_length: The most characters of one message's content.
            seed: The seed for `sample`.

        Raises:
            ValueError: `0 <= min_messages <= max_messages` or `0 <= max_length` does not hold, or `roles` is
                empty or contains an unknown role.
        """
        if not 0 <= min_messages <= max_messages:
            raise ValueError(
                f"0 <= min_messages <= max_messages must hold; got {min_messages=}, {max_messages=}"
            )
        if not roles or isinstance(roles, str) or any(role not in ROLES for role in roles):
            raise ValueError(f"roles must be some of {', '.join(ROLES)}; got {roles!r}")
        self.min_messages = int(min_messages)
        self.max_messages = int(max_messages)
        self.roles: tuple[Role, ...] = tuple(role for role in ROLES if role in roles)
        self.content = Text(max_length)
        super().__init__(seed=seed)

    @property
    def max_length(self) -> int:
        """The most characters of one message's content."""
        return self.content.max_length

    @property
    def is_np_flattenable(self) -> bool:
        """False: a conversation has no fixed size."""
        return False

    def contains(self, x: Any) -> bool:
        """Return whether `x` is such a list of messages."""
        return not self.fault(x)

    def fault(self, x: Any) -> str:
        """Return why `x` is not in the space; "" if it is."""
        if not isinstance(x, list):
            return f"a chat must be a list of messages, not {type(x).__name__}"
        if not self.min_messages <= len(x) <= self.max_messages:
            return (
                f"a chat has {self.min_messages} to {self.max_messages} messages, but this one has {len(x)}"
            )
        for index, message in enumerate(x):
            fault = message_fault(message)
            if not fault and message["role"] not in self.roles:
                fault = f"the role must be one of {', '.join(self.roles)}, not {message['role']}"
            if not fault and len(message["content"]) > self.max_length:
                fault = (
                    f"the content has {len(message['content'])} characters, more than the limit of "
                    f"{self.max_length}"
                )
            if fault:
                return f"[{index}]: {fault}"
        return ""

    def sample(self, mask: Any = None, probability: Any = None) -> list[Message]:
        """Return a short random chat.

        Args:
            mask: A list of chats, one of which is returned, all with equal probability.
            probability: Not supported: chats cannot be the keys of a mapping.

        Raises:
            ValueError: A listed chat is not in the space, or none is listed, or `probability` is given.
        """
        if probability is not None:
            raise ValueError("tinkergym.spaces.Chat samples from a list of chats: pass mask=[chat, ...]")
        if mask is not None:
            return _copied(choose(self, mask))
        most = max(self.min_messages, min(self.max_messages, _SAMPLED_MESSAGES))
        count = int(self.np_random.integers(self.min_messages, most + 1))
        return [self._sample_message() for _ in range(count)]

    def _sample_message(self) -> Message:
        role = self.roles[int(self.np_random.integers(len(self.roles)))]
        message: Message = {"role": role, "content": self.content.sampled_with(self.np_random)}
        if role == "tool":
            message["name"] = "search"
            message["tool_call_id"] = f"call-{int(self.np_random.integers(1_000))}"
        return message

    def to_jsonable(self, sample_n: Iterable[list[Message]]) -> list[list[Message]]:
        """Return copies; messages are already JSON."""
        return [_copied(chat) for chat in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[list[Message]]:
        """Inverse of `to_jsonable`; returns copies."""
        return [_copied(chat) for chat in sample_n]

    def __repr__(self) -> str:
        roles = "" if self.roles == ROLES else f", roles={list(self.roles)}"
        return f"Chat({self.min_messages}, {self.max_messages}{roles}, max_length={self.max_length})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Chat)
            and (self.min_messages, self.max_messages) == (other.min_messages, other.max_messages)
            and self.roles == other.roles
            and self.max_length == other.max_length
        )

    # Like all of Gymnasium's spaces, which are mutable.
    __hash__ = None  # type: ignore[assignment]


def _copied(chat: Iterable[Message]) -> list[Message]:
    return [message.copy() for message in chat]


# --- what Gymnasium does with spaces ---


@_batching.create_empty_array.register(Chat)
def _create_empty_array(space: Chat, n: int = 1, fn: Any = np.zeros) -> tuple[list[Message], ...]:
    del fn
    return tuple(
        [{"role": space.roles[0], "content": ""} for _ in range(space.min_messages)] for _ in range(n)
    )


@_batching.batch_differing_spaces.register(Chat)
def _batch_differing(each: Sequence[Chat]) -> spaces.Tuple[Any]:  # type: ignore[misc]
    return spaces.Tuple([deepcopy(space) for space in each], seed=deepcopy(each[0].np_random))


@_flattening.is_space_dtype_shape_equiv.register(Chat)
def _is_alike(space_1: Chat, space_2: object) -> bool:
    del space_1
    return isinstance(space_2, Chat)


@_flattening.flatdim.register(Chat)
@_flattening.flatten.register(Chat)
@_flattening.unflatten.register(Chat)
@_flattening.flatten_space.register(Chat)
def _refuse_flattening(space: Chat, x: Any = None) -> NoReturn:  # type: ignore[misc]
    del x
    raise InvalidSpaceError(
        f"{space} cannot be flattened: a conversation has no fixed size",
        hint="use text, or do not flatten the chat",
    )


@_shared_memory.create_shared_memory.register(Chat)
def _refuse_shared_memory(space: Chat, n: int = 1, ctx: Any = None) -> NoReturn:
    del n, ctx
    raise TypeError(
        f"{space} cannot be stored in shared memory: pass shared_memory=False to "
        "gymnasium.vector.AsyncVectorEnv, or in vector_kwargs of gymnasium.make_vec"
    )
