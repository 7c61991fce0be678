"""Messages of a conversation, and how observations become messages."""

from tinkergym.messages.checking import (
    MOST_NAME_CHARACTERS,
    checked_content,
    is_unicode,
    message_fault,
)
from tinkergym.messages.message import (
    ROLES,
    Message,
    Role,
    assistant,
    messages_text,
    opening_messages,
    plain_text,
    system,
    user,
)
from tinkergym.messages.observations import (
    NOT_IN_WORDS,
    Observation,
    messages_to_answer,
    observation_messages,
    observation_text,
)

__all__ = [
    "MOST_NAME_CHARACTERS",
    "NOT_IN_WORDS",
    "ROLES",
    "Message",
    "Observation",
    "Role",
    "assistant",
    "checked_content",
    "is_unicode",
    "message_fault",
    "messages_text",
    "messages_to_answer",
    "observation_messages",
    "observation_text",
    "opening_messages",
    "plain_text",
    "system",
    "user",
]
