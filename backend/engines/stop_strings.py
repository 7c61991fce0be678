"""Whether an engine can detect a request's stop strings, and the tokenizer by which it does."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from tinkergym.agent.stop_strings import StopStrings
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.sampling import SampleRequest


def stops_refused(request: SampleRequest, model_directory: Path | None) -> InvalidRequestError | None:
    """Return why an engine cannot detect the request's stop strings; None if it can."""
    if not request.stop or (model_directory is not None and (model_directory / "tokenizer.json").is_file()):
        return None
    return InvalidRequestError(
        "the model has no tokenizer.json, so the engine cannot detect stop strings",
        hint="add its tokenizer.json to its directory, or use stop_ids",
        field="stop",
    )


def stops_of(request: SampleRequest, model_directory: Path | None) -> StopStrings | None:
    """Return the detector of the request's stop strings; None if it has none."""
    if not request.stop or model_directory is None:
        return None
    return StopStrings(model_tokenizer(model_directory), request.stop)


@cache
def model_tokenizer(model_directory: Path) -> Tokenizer:
    """Return the tokenizer of a model, read once."""
    return Tokenizer.from_file(str(model_directory / "tokenizer.json"))
