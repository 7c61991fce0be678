from __future__ import annotations

import pytest
from huggingface_hub import errors

from backend.catalog.hub import why_not


class ProxyError(Exception):
    """As the hub's HTTP library raises it, which is no OSError."""


def refusal(kind, status):
    # What the client makes of an answer, without the answer.
    error = kind.__new__(kind)
    Exception.__init__(error, f"{status} Client Error.\n\nRequest ID: 1")
    return error


@pytest.mark.parametrize(
    ("error", "reason", "advice"),
    [
        (errors.LocalEntryNotFoundError("no internet"), "could not be reached", "path of a folder on the"),
        (ConnectionResetError("reset"), "could not be reached", "path of a folder on the service's machine"),
        (ProxyError("407"), "could not be reached", "proxy"),
        (refusal(errors.GatedRepoError, 403), "'a/b' is gated", "HF_TOKEN"),
        (refusal(errors.RepositoryNotFoundError, 404), "has no 'a/b', or it is private", "spelling"),
        (refusal(errors.HfHubHTTPError, 503), "refused 'a/b': 503 Client Error.", "try again"),
        (errors.HFValidationError("a--b"), "is not a valid hub id", "owner/name"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left", "path of a folder"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_says_for_each_failure_of_the_hub_what_to_do(error, reason, advice):
    said, hint = why_not("a/b", error)
    assert reason in said
    assert advice in hint
