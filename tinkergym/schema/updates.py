"""Changes of a job's settings during training, as they are sent, stored and shown."""

from __future__ import annotations

from pydantic import Field, JsonValue

from tinkergym.schema.model import WireModel

MOST_UPDATES = 1000
"""The most changes of one job: each view of it shows all of them."""


class SettingChange(WireModel):
    """One changed setting."""

    name: str = Field(max_length=300)
    """As in the job: `learning_rate`; of one policy of a game: `agents.black.learning_rate`."""
    old: JsonValue
    new: JsonValue


class SettingsUpdate(WireModel):
    """Settings that were changed together."""

    changes: list[SettingChange] = Field(min_length=1, max_length=100)
    from_step: int | None = None
    """The first step that they apply to; None until the next train step begins."""


class UpdateRequest(WireModel):
    """The body of `POST /v1/jobs/{job_id}/update`."""

    settings: dict[str, JsonValue] = Field(min_length=1, max_length=100)
    """Values by name, without a section in front: `learning_rate`, `budget`, ...; those of one policy of a
    game are named `agents.black.learning_rate`."""
