"""The errors with which every engine answers requests that it cannot compute."""

from __future__ import annotations

from tinkergym.errors import (
    PolicyVersionGoneError,
    ServiceUnavailableError,
    TinkerGymError,
    UnsupportedPartError,
)
from tinkergym.schema.events import ErrorView
from tinkergym.schema.sampling import SampleFailure, SampleRequest


def failure(request: SampleRequest, error: TinkerGymError) -> SampleFailure:
    """Answer a request with an error."""
    return SampleFailure(request_id=request.request_id, error=ErrorView(**error.to_wire()))


def version_gone(request: SampleRequest) -> PolicyVersionGoneError:
    """Return the error for a policy version that is not loaded."""
    return PolicyVersionGoneError(
        f"policy {request.policy!r} at version {request.policy_version} is not loaded in the engine",
        hint="a newer version was published, or the policy was retired; ask for the newest version",
    )


def sender_gone(request: SampleRequest | None) -> ServiceUnavailableError:
    """Return the error for a request whose sender is gone; None is a batch of requests."""
    name = "these requests" if request is None else repr(request.request_id)
    return ServiceUnavailableError(f"the sender of {name} is gone", hint="ask again")


def images_refused(request: SampleRequest) -> UnsupportedPartError | None:
    """Return the error for a request with images; None if it has none."""
    if not request.images:
        return None
    return UnsupportedPartError(
        "the prompt contains an 'image' part, but this model supports only text",
        hint="leave images out of the prompt",
        field="images",
    )
