"""Results of an inference job."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tinkergym.schema.data import PromptNote
from tinkergym.schema.events import ErrorView
from tinkergym.schema.model import WireModel
from tinkergym.trajectory.trajectory import MOST_TOKENS, Logprob, TokenId


class SampledRow(WireModel):
    """One completion of a row, or why there is none."""

    token_ids: list[TokenId] = Field([], max_length=MOST_TOKENS)
    logprobs: list[Logprob] | None = Field(None, max_length=MOST_TOKENS)
    """Set if the job has `logprobs`."""
    finish_reason: Literal["stop", "length"] | None = None
    """None for a row that failed."""
    policy_version: int = 0
    text: str | None = None
    """Up to the stop string or the stop id, if the job has stop strings."""
    error: ErrorView | None = None


class RowResult(WireModel):
    """The completions of a row; a line of the response to `GET /v1/jobs/{job_id}/results`."""

    row: int
    prompt_tokens: int
    note: PromptNote
    samples: list[SampledRow] = Field(max_length=1024)
