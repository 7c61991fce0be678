"""Ids of jobs, policies, episodes and seats, typed: each says what it is the id of.

On the wire and in SQL an id is the text that `str` returns and `parse` reads; only this module takes one
apart. Pure syntax: the service's store resolves a reference to a version and its files.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from typing import Literal, Self
from urllib.parse import quote, unquote

from tinkergym.errors import InvalidRequestError

_JOB, _POLICY = "job-", "policy-"

WHOSE_POLICY = rf"({_POLICY}[^@/\s]+|{_JOB}[^@/\s]+(/[^@/\s]+)?)"
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


def is_job_id(text: str) -> bool:
    """Whether a text is meant as a job's id rather than as its name."""
    return text.startswith(_JOB)


def is_policy_id(text: str) -> bool:
    """Whether a text is meant as a policy's own id rather than as that of the job that trains it."""
    return text.startswith(_POLICY)


def new_job_id() -> str:
    """Return an id for a job that does not exist yet."""
    return f"{_JOB}{secrets.token_hex(8)}"


def new_policy_id() -> str:
    """Return an id for a policy that does not exist yet."""
    return f"{_POLICY}{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRef:
    """A policy and one of its versions: `policy-ID`, `job-ID@40`, `job-ID/black@step:40`, `job-ID@best`.

    At most one of `version`, `step` and `name` is set.
    """

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
        found = cls.find(text)
        if found is None:
            raise InvalidRequestError(
                f"{text!r} is not a valid policy reference", hint=HOW_TO_WRITE_POLICIES, field=field
            )
        return found

    @classmethod
    def find(cls, text: str) -> Self | None:
        """Parse a text that may also be something else, such as a model's name; None if it is."""
        if not re.fullmatch(POLICY_REF, text):
            return None
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
        return text.startswith((_JOB, _POLICY))

    @property
    def names_policy(self) -> bool:
        """Whether `owner` is the id of a policy, not of a job."""
        return is_policy_id(self.owner)

    @property
    def all_of_job(self) -> bool:
        """Whether it names a job without an agent: all policies of a job that trains several."""
        return not self.names_policy and not self.agent

    @property
    def has_version(self) -> bool:
        """Whether it says which version."""
        return self.version is not None or self.step is not None or self.name != ""

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


def policy_of(job_id: str, agent: str = "", *, version: int | None = None) -> str:
    """Return the name of the policy that a job trains for an agent; without an agent if it trains one."""
    return str(PolicyRef(owner=job_id, agent=agent, version=version))


def chosen_version(job_id: str, agent: str, chosen: int | str) -> str:
    """Return a reference whose version a user writes: 40, `step:40`, `best` or `latest`; unchecked."""
    return f"{policy_of(job_id, agent)}@{chosen}"


def environment_namespace(environment_id: str) -> str:
    """Return what an environment's id begins with: `board` of `board/TicTacToe-v0`."""
    return environment_id.partition("/")[0]


def agent_version(agent: str, version: int) -> str:
    """Return the name of a policy's version within its job: `black@3`, or `3` if the job trains one."""
    return f"{agent}@{version}" if agent else str(version)


@dataclass(frozen=True, slots=True)
class JobRef:
    """A job, or one of its boards of episodes: `job-ID`, `job-ID/evaluate`."""

    job_id: str
    board: str = ""
    """Empty for the episodes that it trains on."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text; `str` is the inverse."""
        job_id, _, board = text.partition("/")
        return cls(job_id, board)

    def __str__(self) -> str:
        return f"{self.job_id}/{self.board}" if self.board else self.job_id


EpisodeGroup = tuple[JobRef, int, int]
"""A job's board, a step and the number of one of its groups."""


@dataclass(frozen=True, slots=True)
class EpisodeId:
    """An episode of a job's step: `job-ID:3:17`. It stays the same, however often the episode is issued."""

    job: JobRef
    step: int
    index: int
    """Counts the episodes of the step."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an id; `str` is the inverse.

        Raises:
            InvalidRequestError: It is not the id of a job's episode.
        """
        found = cls.find(text)
        if found is None:
            raise InvalidRequestError(
                f"{text!r:.200} is not the id of an episode",
                hint="write JOB_ID:STEP:INDEX, as the service names it",
                field="episode_id",
            )
        return found

    @classmethod
    def find(cls, text: str) -> Self | None:
        """Parse an id from a client or a file; None if it is not that of a job's episode."""
        found = re.fullmatch(r"(.+):([0-9]{1,12}):([0-9]{1,12})", text)
        return None if found is None else cls(JobRef.parse(found[1]), int(found[2]), int(found[3]))

    def in_group(self, group: int) -> EpisodeGroup:
        """Return what it has in common with the episodes of its group, by the group's number in the step."""
        return self.job, self.step, group

    def __str__(self) -> str:
        return f"{self.job}:{self.step}:{self.index}"


@dataclass(frozen=True, slots=True)
class SeatRef:
    """A seat of an episode being played, as the `session_id` of its requests: `OWNER/LEASE.SEAT`.

    Prompts of different seats share nothing, so each has its own session. The gateway adds the owner, so that
    engines share no cache between tenants.
    """

    lease: str
    """The id of the lease, or of the episode if it is not leased; may be any text of a client."""
    seat: int = 0
    """The seat's index in the episode; the first seat's is not written."""
    owner: str = ""
    """The tenant; empty if it is not known yet."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a session; `str` is the inverse."""
        owner, slash, session = text.partition("/")
        owner, session = (unquote(owner), session) if slash else ("", text)
        found = re.fullmatch(r"(.*)\.([1-9][0-9]{0,8})", session, re.DOTALL)
        return cls(session, owner=owner) if found is None else cls(found[1], int(found[2]), owner)

    @staticmethod
    def prefix_of(owner: str) -> str:
        """Return what stands before a session of this owner, whatever a client wrote before a slash."""
        return f"{quote(owner, safe='')}/"

    def __str__(self) -> str:
        session = f"{self.lease}.{self.seat}" if self.seat else self.lease
        return f"{self.prefix_of(self.owner)}{session}" if self.owner else session


@dataclass(frozen=True, slots=True)
class WorkerRef:
    """A rollout worker: `client-HOST-PROCESS-1a2b3c4d`. It may be any text of a client."""

    process: str
    """Its role, host and process."""
    name: str = ""
    """What tells apart the workers of one process."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text; `str` is the inverse."""
        process, _, name = text.rpartition("-")
        return cls(process, name) if process and name else cls(text)

    def __str__(self) -> str:
        return f"{self.process}-{self.name}" if self.name else self.process


@dataclass(frozen=True, slots=True)
class AgentMetric:
    """A step's metric, of one policy or seat or of the whole job: `policy/black/loss`, `step_seconds`."""

    kind: str
    """`policy` or `seat`; empty for a metric of the whole job."""
    agent: str
    name: str
    """May contain slashes: `completions/mean_length`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a metric's name; `str` is the inverse."""
        kind, _, rest = text.partition("/")
        agent, slash, name = rest.partition("/")
        return cls(kind, agent, name) if kind in {"policy", "seat"} and slash else cls("", "", text)

    def __str__(self) -> str:
        return f"{self.kind}/{self.agent}/{self.name}" if self.kind else self.name
