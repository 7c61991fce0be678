"""The tokenizer of an engine's model, and the stop strings that the engine detects with it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from tinkergym.agent.stop_strings import StopStrings
from tinkergym.schema.sampling import SampleRequest


def stops_of(request: SampleRequest, model_directory: Path | None) -> StopStrings | None:
    """Return the detector of the request's stop strings; None if it has none."""
    if not request.stop or model_directory is None:
        return None
    return StopStrings(model_tokenizer(model_directory), request.stop)


@cache
def model_tokenizer(model_directory: Path) -> Tokenizer:
    """Return the tokenizer of a model, read once."""
    return Tokenizer.from_file(str(model_directory / "tokenizer.json"))
