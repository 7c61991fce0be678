"""References to policies: `policy-ID`, `job-ID@40`, `job-ID/black@step:40`, `job-ID@best`.

Pure syntax. The service's store resolves a reference to a version and its files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, Self

from tinkergym.errors import InvalidRequestError

WHOSE_POLICY = r"(policy-[^@/\s]+|job-[^@/\s]+(/[^@/\s]+)?)"
"""Pattern of what comes before the version."""

_NUMBER = r"[0-9]{1,18}"

POLICY_REF = rf"{WHOSE_POLICY}(@({_NUMBER}|step:{_NUMBER}|latest|best))?"
"""Pattern of a reference."""

DEFINITE_POLICY_REF = rf"{WHOSE_POLICY}@{_NUMBER}"
"""Pattern of a reference with a version number."""

HOW_TO_WRITE_POLICIES = (
    "write job-ID or policy-ID for the newest version, job-ID@40 for version 40, job-ID@step:40 for the one "
    "of train step 40, and job-ID/AGENT if a job trains several policies"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRef:
    """A policy and one of its versions. At most one of `version`, `step` and `name` is set."""

    owner: str
    """The id of a policy, or of the job that trains it."""
    agent: str = ""
    """Which of a job's policies; empty if it trains one."""
    version: int | None = None
    """Counts publishes; 0 is the policy before training. For a policy trained by calls it is the number of
    the call that published or saved it."""
    step: int | None = None
    """The version that was published at this train step."""
    name: Literal["", "latest", "best"] = ""

    @classmethod
    def parse(cls, text: str, *, field: str = "policy") -> Self:
        """Parse a reference; `str` is the inverse.

        Raises:
            InvalidRequestError: It is not a reference; the error has this `field`.
        """
        if not re.fullmatch(POLICY_REF, text):
            raise InvalidRequestError(
                f"{text!r} is not a valid policy reference", hint=HOW_TO_WRITE_POLICIES, field=field
            )
        whose, _, chosen = text.partition("@")
        owner, _, agent = whose.partition("/")
        ref = cls(owner=owner, agent=agent)
        match chosen:
            case "":
                return ref
            case "latest" | "best":
                return replace(ref, name=chosen)
            case _ if chosen.startswith("step:"):
                return replace(ref, step=int(chosen.removeprefix("step:")))
            case _:
                return replace(ref, version=int(chosen))

    @staticmethod
    def is_meant(text: str) -> bool:
        """Whether a text that could also be a model's name is a reference."""
        return text.startswith(("job-", "policy-"))

    @property
    def is_newest(self) -> bool:
        """Whether it means the newest version."""
        return self.version is None and self.step is None and self.name != "best"

    @property
    def whose(self) -> str:
        """The reference without its version."""
        return f"{self.owner}/{self.agent}" if self.agent else self.owner

    def at(self, version: int) -> Self:
        """Return a reference to this version of the same policy."""
        return replace(self, version=version, step=None, name="")

    def __str__(self) -> str:
        if self.version is not None:
            return f"{self.whose}@{self.version}"
        if self.step is not None:
            return f"{self.whose}@step:{self.step}"
        return f"{self.whose}@{self.name}" if self.name else self.whose


def policy_of(job_id: str, agent: str = "") -> str:
    """Return the name of the policy that a job trains for an agent; without an agent if it trains one."""
    return f"{job_id}/{agent}" if agent else job_id
