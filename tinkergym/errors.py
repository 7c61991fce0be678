"""Every error that tinkergym raises, each with a type to catch and a text that says what to do next.

An error that crosses the wire keeps its type: `to_wire` and `from_wire` are inverse for every class here.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TinkerGymError(Exception):
    """Something went wrong that the text explains.

    Attributes:
        message: What happened and where.
        hint: What to do next; may be empty.
        field: The dotted name of the setting that is at fault, if one is.
    """

    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str = "", field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.field = field

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.field)

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"{where}{self.message}" + (f" ({self.hint})" if self.hint else "")

    def to_wire(self) -> dict[str, str]:
        """Return the JSON object that carries this error between processes."""
        return {
            "type": type(self).__name__,
            "message": self.message,
            "hint": self.hint,
            "field": self.field,
        }


class InvalidRequestError(TinkerGymError):
    """A request or a setting was refused before anything started."""

    http_status = 422


class UnknownModelError(InvalidRequestError):
    """The service does not offer this model."""


class UnknownEnvironmentError(InvalidRequestError):
    """No installed pack registers this environment id."""


class InvalidEnvironmentError(InvalidRequestError):
    """The environment cannot be trained in: its spaces, its start or its metadata are wrong."""


class UnsupportedPartError(InvalidEnvironmentError, ValueError):
    """A message or a record has a part that is not text, such as an image, and the model takes text only."""


class ImageObservationError(UnsupportedPartError):
    """The environment shows an image, and the model takes text only."""

    def __init__(self, message: str, *, hint: str = "", field: str = "") -> None:
        hint = hint or (
            "choose a vision-language model such as nano-vl, or describe it in words under 'text' and leave "
            "the image out of the observation"
        )
        super().__init__(message, hint=hint, field=field)


class InvalidImageError(InvalidEnvironmentError, ValueError):
    """An image is broken, animated or too large, or what was given is no image."""


class UnsupportedSpaceError(InvalidRequestError):
    """A space has no such form: it cannot be flattened, or written as JSON."""


class InvalidSpaceError(InvalidRequestError):
    """A JSON document describes no space."""


class InvalidValueError(InvalidRequestError):
    """A value does not belong to its space."""


class InvalidDataError(InvalidRequestError):
    """Written data cannot be trained on; the message names the line, the field and the reason."""


class PromptTooLongError(InvalidRequestError):
    """The first prompt leaves no room for an answer in the model's context."""


class AuthenticationError(TinkerGymError):
    """The API key is missing, unknown or revoked."""

    http_status = 401


class MissingExtraError(TinkerGymError):
    """An optional package is not installed."""


class NotFoundError(TinkerGymError):
    """No such thing is visible to this API key."""

    http_status = 404


class ConflictError(TinkerGymError):
    """The thing is not in a state that allows this."""

    http_status = 409


class PayloadTooLargeError(TinkerGymError):
    """A request body is over the service's limit."""

    http_status = 413


class ServiceUnavailableError(TinkerGymError):
    """A part of the service is not there at the moment; the request can be repeated."""

    http_status = 503


class ServiceUnreachableError(ServiceUnavailableError):
    """No service answers at the URL."""


class ClientClosedError(TinkerGymError):
    """This process closed its connection to the service, so trying again cannot help."""


class StorageFullError(TinkerGymError):
    """No space is left on the service's disk."""

    http_status = 507


class CheckpointCorruptError(TinkerGymError):
    """A checkpoint's files are not those that were written."""


class NonFiniteGradientError(TinkerGymError):
    """A gradient was NaN or infinite and was not applied."""


class NonFiniteLossError(NonFiniteGradientError):
    """A loss was NaN or infinite; its gradient was not applied."""


class PolicyVersionGoneError(ConflictError):
    """The policy version asked for is no longer, or not yet, loaded in the engine."""


class JobFailedError(TinkerGymError):
    """The job ended without success; the message carries the service's reason."""


class JobCancelledError(JobFailedError):
    """The job was cancelled."""


class ParityError(JobFailedError):
    """Learner and engine disagree about the policy: their logprobs drifted apart, or their weights differ."""


class TooManyFailedEpisodesError(JobFailedError):
    """More of a step's episodes failed than `max_failed_fraction` allows."""


class EnvironmentCrashedError(JobFailedError):
    """The environment took the process down that played it, again and again."""


class InvalidRewardError(TinkerGymError):
    """The environment cannot say what reward was earned: a term raised, or gave no finite number."""


class NoCompletionError(TinkerGymError):
    """A model behind an OpenAI-style URL did not answer in time, or not with a completion."""


class OpponentFailedError(TinkerGymError):
    """A model elsewhere that plays a seat of a game gave no answer; the message names the seat."""


class InvalidToolError(InvalidRequestError):
    """A tool cannot be offered to a model: its annotations, its docstring or its name are wrong."""


class ToolArgumentsError(TinkerGymError):
    """The arguments of a call do not fit the tool; the text is for the model."""


class ToolError(TinkerGymError):
    """A tool could not do what was asked; the text is for the model. Tools of your own may raise it."""


class EnvironmentInfrastructureError(TinkerGymError):
    """Something that the environment runs on failed, such as a tool's server; not the policy's action."""


class RemoteEnvironmentError(TinkerGymError):
    """An environment behind a server raised; the message ends with the traceback from there."""


class RemoteAnswerError(RemoteEnvironmentError):
    """An environment server answered with something that is no answer: a wrong type, size, space or number.

    The session is over. Nothing of the answer was used.
    """


class EnvironmentTimeoutError(TinkerGymError):
    """A call of an environment behind a server took longer than the server allows."""


class EnvironmentGoneError(TinkerGymError):
    """An environment behind a server is there no longer, and what was played in it is lost."""


class TooManyRequestsError(ServiceUnavailableError):
    """This tenant has more in flight than the service allows; ask again when some of it is answered."""

    http_status = 429


class EnvironmentBusyError(ServiceUnavailableError):
    """An environment server has no place free.

    Attributes:
        retry_after_seconds: When asking again makes sense.
    """

    retry_after_seconds: float = 1.0

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"retry_after_seconds": self.retry_after_seconds})


class StepIndexError(ConflictError):
    """A call of an environment behind a server came with a number that is not its turn."""


class ProtocolVersionError(TinkerGymError):
    """Client and environment server do not speak the same version of their protocol."""

    http_status = 426


class VersionMismatchError(TinkerGymError):
    """Client and service are of versions that may not understand each other."""

    http_status = 426


class IllegalMoveError(TinkerGymError):
    """The rules of a game do not allow this move; the message says why, to whoever made it."""


class EpisodeProtocolError(TinkerGymError):
    """`reset`, `act` and `step` were called in an order that makes no episode."""


class TemplateError(InvalidRequestError):
    """A chat template cannot be used: it fails to render or rewrites the conversation's past."""


class InternalServiceError(TinkerGymError):
    """The service met a state it did not expect; its log has the details."""


def _rebuild(kind: type[TinkerGymError], message: str, hint: str, field: str) -> TinkerGymError:
    return kind(message, hint=hint, field=field)


def _kinds(root: type[TinkerGymError]) -> dict[str, type[TinkerGymError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _kinds(child)
    return found


def from_wire(payload: dict[str, Any]) -> TinkerGymError:
    """Rebuild an error from `to_wire`; a type that this version does not know becomes the base type."""
    kind = _kinds(TinkerGymError).get(str(payload.get("type", "")), TinkerGymError)
    return kind(
        str(payload.get("message", "the service gave no reason")),
        hint=str(payload.get("hint", "")),
        field=str(payload.get("field", "")),
    )
