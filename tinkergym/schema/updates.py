"""Changes of a job's settings while it trains, as they are sent, stored and shown."""

from __future__ import annotations

from pydantic import Field, JsonValue

from tinkergym.schema.model import WireModel

MOST_UPDATES = 1000
"""Of one job: each view of it shows all of them."""


class SettingChange(WireModel):
    """One setting that was changed."""

    name: str = Field(max_length=100)
    old: JsonValue
    new: JsonValue


class SettingsUpdate(WireModel):
    """Settings that were changed together."""

    changes: list[SettingChange] = Field(min_length=1, max_length=100)
    from_step: int | None = None
    """The first step that they apply to; None until the job begins to learn in its next step."""


class UpdateRequest(WireModel):
    """The body of `POST /v1/jobs/{job_id}/update`."""

    settings: dict[str, JsonValue] = Field(min_length=1, max_length=100)
    """By name, without a section in front: `learning_rate`, `budget`, ..."""
