"""Names under which versions of policies are served, and what share of the requests a canary takes."""

from __future__ import annotations

import hashlib
import re

from pydantic import Field

from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.model import UserSettings, WireModel
from tinkergym.schema.refusals import Refusal

MOST_NAMES = 1000
"""Of one tenant."""

_NAME = re.compile(r"(?!job-|policy-)[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")

_WHOLE = 2**64


class Promotion(UserSettings):
    """Which version a name is to serve."""

    policy: str = Field(min_length=1, max_length=200)
    """A reference with a version: `job-ID@40`, `job-ID/AGENT@best`; `job-ID` is its newest stored one."""
    share: float = Field(1.0, gt=0, le=1)
    """The share of the requests; below 1, the rest stays with the version that the name serves now."""


class ServedName(WireModel):
    """A name that requests of the OpenAI API can have as `model`."""

    name: str
    policy: str
    """The policy and its version, such as `job-ID@40`."""
    canary: str = ""
    """A second version that is tried; empty if there is none."""
    share: float = 0.0
    """The share of the requests that the second one takes."""
    changed_at: float
    """Unix seconds."""

    @property
    def versions(self) -> list[PolicyRef]:
        """The versions that it serves."""
        return [PolicyRef.parse(text) for text in (self.policy, self.canary) if text]

    def version_for(self, caller: str) -> PolicyRef:
        """Return the version that serves a caller: the same one while the name is not changed.

        A larger share keeps the callers that the second version has already.
        """
        digest = hashlib.sha256(f"{self.name}\0{caller}".encode()).digest()
        is_tried = bool(self.canary) and int.from_bytes(digest[:8]) < self.share * _WHOLE
        return PolicyRef.parse(self.canary if is_tried else self.policy)

    @property
    def words(self) -> str:
        """What it serves, for people."""
        if not self.canary:
            return self.policy
        return f"{self.policy}; {self.canary} for {100 * self.share:.3g} % of the requests"


class ServedNames(WireModel):
    """All names of a tenant."""

    names: list[ServedName] = Field(max_length=MOST_NAMES)


def name_fault(name: str) -> Refusal | None:
    """Return why a version cannot be promoted to this name; None if it can."""
    if _NAME.fullmatch(name):
        return None
    return Refusal(
        "name",
        f"{name!r:.120} cannot be the name of a policy",
        "use at most 100 letters, digits and . _ : -; job- and policy- begin ids",
        "invalid_name",
    )
