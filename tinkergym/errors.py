"""Every error that tinkergym raises. Each has a type to catch and a text that says what to do next.

    TinkerGymError
    ├── InvalidRequestError: refused before anything started
    │   ├── UnknownModelError, UnknownEnvironmentError, PromptTooLongError, TemplateError, InvalidToolError
    │   ├── InvalidSpaceError, InvalidValueError
    │   └── InvalidEnvironmentError
    │       └── UnsupportedPartError, InvalidImageError
    ├── AuthenticationError, ReadOnlyKeyError, LimitedKeyError, OperatorOnlyError
    ├── NotFoundError, PayloadTooLargeError
    ├── MisdirectedRequestError
    ├── VersionMismatchError
    ├── ConflictError: the state does not allow it
    │   └── PolicyVersionGoneError, NotReplayableError
    ├── ServiceUnavailableError: try again
    │   └── ServiceUnreachableError, TooManyRequestsError, EnvironmentBusyError
    ├── JobFailedError: how a job ended
    │   └── JobCancelledError, ParityError, TooManyFailedEpisodesError
    ├── StorageFullError, CheckpointCorruptError, NonFiniteLossError, InternalServiceError, MissingExtraError
    ├── RemoteEnvironmentError: an environment on a server raised
    │   └── RemoteAnswerError
    ├── EnvironmentTimeoutError, EnvironmentGoneError, EnvironmentInfrastructureError
    ├── InvalidRewardError, EpisodeProtocolError, IllegalMoveError, OpponentFailedError, NoCompletionError
    └── ToolError, ToolArgumentsError: shown to the model

An error that crosses the wire keeps its type: `to_wire` and `from_wire` are inverse for every class here.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar


class TinkerGymError(Exception):
    """Base class of all tinkergym errors.

    Attributes:
        message: What happened and where.
        hint: What to do next; may be empty.
        field: The dotted name of the invalid setting, if there is one.
        code: Which of the errors of its type this is, for programs; by default its type, such as `not_found`.
    """

    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str = "", field: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.field = field
        self.code = code or _code_of(type(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return from_wire, (self.to_wire(), type(self))

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"{where}{self.message}" + (f" ({self.hint})" if self.hint else "")

    def to_wire(self) -> dict[str, str]:
        """Return this error as a JSON object to send to another process."""
        return {
            "type": type(self).__name__,
            "message": self.message,
            "hint": self.hint,
            "field": self.field,
            "code": self.code,
        }


def _code_of(kind: type[TinkerGymError]) -> str:
    return re.sub(r"\B(?=[A-Z])", "_", kind.__name__.removesuffix("Error")).lower()


class InvalidRequestError(TinkerGymError):
    """A request or a setting was refused before anything started."""

    http_status = 422


class UnknownModelError(InvalidRequestError):
    """The service does not offer this model."""


class UnknownEnvironmentError(InvalidRequestError):
    """No installed pack registers this environment id."""


class InvalidEnvironmentError(InvalidRequestError):
    """The environment cannot be used for training: its spaces, its reset or its metadata are wrong."""


class UnsupportedPartError(InvalidEnvironmentError, ValueError):
    """A message or a record has a part, such as an image, that the model does not support."""


class InvalidImageError(InvalidEnvironmentError, ValueError):
    """An image is broken, animated or too large, or the value is not an image."""


class InvalidSpaceError(InvalidRequestError):
    """A space cannot be flattened or written as JSON, or a JSON document does not describe one."""


class InvalidValueError(InvalidRequestError):
    """A value does not belong to its space."""


class PromptTooLongError(InvalidRequestError):
    """The prompt leaves no room in the model's context for a completion, or for one as long as wanted."""


class AuthenticationError(TinkerGymError):
    """The API key is missing, unknown or revoked."""

    http_status = 401


class ReadOnlyKeyError(TinkerGymError):
    """The API key is valid and may only sample and read; this request would change something."""

    http_status = 403


class LimitedKeyError(TinkerGymError):
    """The API key has a rate, which this request would get around."""

    http_status = 403


class OperatorOnlyError(TinkerGymError):
    """The API key is valid, and this is only shown to who runs the service."""

    http_status = 403


class MissingExtraError(TinkerGymError):
    """An optional package is not installed."""


class NotFoundError(TinkerGymError):
    """Not found, or not visible to this API key."""

    http_status = 404


class ConflictError(TinkerGymError):
    """The current state does not allow this operation."""

    http_status = 409


class PayloadTooLargeError(TinkerGymError):
    """A request body exceeds the service's limit."""

    http_status = 413


class MisdirectedRequestError(TinkerGymError):
    """A request names a host that this service is not known as, so a web page elsewhere may have sent it."""

    http_status = 421


class ServiceUnavailableError(TinkerGymError):
    """A part of the service is temporarily unavailable; the request can be repeated."""

    http_status = 503


class ServiceUnreachableError(ServiceUnavailableError):
    """No service responds at the URL."""


class StorageFullError(TinkerGymError):
    """The service's disk is full."""

    http_status = 507


class CheckpointCorruptError(TinkerGymError):
    """A checkpoint's files differ from what was written."""


class NonFiniteLossError(TinkerGymError):
    """A loss or a gradient was NaN or infinite; nothing was applied."""


class PolicyVersionGoneError(ConflictError):
    """The requested policy version is not loaded in the engine: it was retired, or is not published yet."""


class JobFailedError(TinkerGymError):
    """The job failed; the message has the service's reason."""


class JobCancelledError(JobFailedError):
    """The job was cancelled."""


class ParityError(JobFailedError):
    """Learner and engine disagree about the policy: their logprobs or their weights differ."""


class TooManyFailedEpisodesError(JobFailedError):
    """Too many of a step's episodes failed, or the environment repeatedly crashed its process."""


class InvalidRewardError(TinkerGymError):
    """The reward cannot be computed: a term raised or did not return a finite number."""


class NoCompletionError(TinkerGymError):
    """A model behind an OpenAI-style URL did not respond in time, or not with a completion."""


class OpponentFailedError(TinkerGymError):
    """An external or scripted player of a game's seat did not act; the message names the seat."""


class InvalidToolError(InvalidRequestError):
    """A function cannot be used as a tool, or the operator or the machine does not allow `PythonTool`."""


class ToolArgumentsError(TinkerGymError):
    """The arguments of a call do not match the tool; the text is shown to the model."""


class ToolError(TinkerGymError):
    """A tool could not do what was asked; the text is shown to the model. Your own tools may raise it."""


class EnvironmentInfrastructureError(TinkerGymError):
    """Infrastructure of the environment failed, such as a tool's server.

    The policy's action is not the cause.
    """


class RemoteEnvironmentError(TinkerGymError):
    """An environment on a server raised; the message ends with the server's traceback."""


class RemoteAnswerError(RemoteEnvironmentError):
    """An environment server sent an invalid response: a wrong type, size, space or number.

    The session is over, and nothing of the response was used.
    """


class EnvironmentTimeoutError(TinkerGymError):
    """A call to an environment on a server took longer than the server allows."""


class EnvironmentGoneError(TinkerGymError):
    """The session on an environment server is gone, and the episode with it."""


class TooManyRequestsError(ServiceUnavailableError):
    """More requests are in flight than the service allows, or the key has used up its rate. Retry later.

    Attributes:
        retry_after_seconds: How long to wait before the next try.
    """

    http_status = 429
    retry_after_seconds: float = 1.0


class EnvironmentBusyError(ServiceUnavailableError):
    """An environment server has no place free.

    Attributes:
        retry_after_seconds: How long to wait before the next try.
    """

    retry_after_seconds: float = 1.0

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"retry_after_seconds": self.retry_after_seconds})


class VersionMismatchError(TinkerGymError):
    """Client and service, or client and environment server, have versions that may be incompatible."""

    http_status = 426


class IllegalMoveError(TinkerGymError):
    """The rules of a game do not allow this move; the message explains why to the player."""


class EpisodeProtocolError(TinkerGymError):
    """`reset`, `act` and `step` were called in the wrong order."""


class NotReplayableError(ConflictError):
    """An episode cannot be played again from its seed and actions, so it cannot be continued either."""


class TemplateError(InvalidRequestError):
    """A chat template cannot be used: it does not render, or it rewrites earlier messages."""


class InternalServiceError(TinkerGymError):
    """The service is in an unexpected state; its log has the details."""


def _kinds(root: type[TinkerGymError]) -> dict[str, type[TinkerGymError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _kinds(child)
    return found


def from_wire(payload: dict[str, Any], kind: type[TinkerGymError] | None = None) -> TinkerGymError:
    """Rebuild an error from `to_wire`.

    Args:
        payload: What `to_wire` returned, perhaps in another version.
        kind: The error's type. None finds it by its name; an unknown one becomes the base type.
    """
    kind = kind or _kinds(TinkerGymError).get(str(payload.get("type", "")), TinkerGymError)
    return kind(
        str(payload.get("message", "the service did not give a reason")),
        hint=str(payload.get("hint", "")),
        field=str(payload.get("field", "")),
        code=str(payload.get("code", "")),
    )
