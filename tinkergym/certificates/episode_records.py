"""What in a bundle's ledger and episodes contradicts the facts, the log, or each other."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from pydantic import ValidationError

from tinkergym.certificates.archive import BundleFiles
from tinkergym.certificates.bundle import EPISODES, LEDGER, step_of_episode
from tinkergym.certificates.event_log import EventLog
from tinkergym.schema.certificate import EpisodeFate, RunFacts, StepFacts, StepLedger
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import EpisodeEvent
from tinkergym.schema.ids import EpisodeId, JobRef
from tinkergym.trajectory.trajectory import Trajectory

_MOST_NAMED = 20
"""The most episodes of a file that are named."""

_OWN_REASONS = frozenset({"no_turns", "replaced_group", "masked", "nothing_to_compare"})
"""Why an episode may be dropped that did not fail."""


def read_ledgers(facts: RunFacts, files: BundleFiles) -> tuple[dict[int, StepLedger], list[str]]:
    """Read the ledger of each step that has one, and name the lines that contradict the facts."""
    ledgers, problems = dict[int, StepLedger](), list[str]()
    recorded, lines, others = {step.ledger_sha256 for step in facts.steps}, dict[str, bytes](), 0
    for given in files.lines(LEDGER):
        digest = hashlib.sha256(given).hexdigest()
        if digest in recorded:
            lines[digest] = given
        else:
            others += 1
    for step in facts.steps:
        if not step.ledger_sha256:
            continue
        line = lines.pop(step.ledger_sha256, None)
        if line is None:
            problems.append(f"{LEDGER}: the line of step {step.step} differs from the recorded one")
            continue
        try:
            ledger = StepLedger.model_validate_json(line)
        except ValidationError:
            problems.append(f"{LEDGER}: the line of step {step.step} is not a ledger")
            continue
        ledgers[step.step] = ledger
        if counted(ledger) != step.model_copy(update=_UNCOUNTED | {"ledger_sha256": ""}):
            problems.append(f"{LEDGER}: the episodes of step {step.step} do not match its counts")
        problems += [f"{LEDGER}: {fault}" for fate in ledger.episodes for fault in _fate(facts, ledger, fate)]
        twice = [
            name for name, times in Counter(fate.episode_id for fate in ledger.episodes).items() if times > 1
        ]
        problems += [f"{LEDGER}: episode {name} is there twice" for name in twice]
    if (lines or others) and not problems:
        problems.append(f"{LEDGER}: it has lines that were not recorded")
    return ledgers, problems


_UNCOUNTED: dict[str, object] = {
    "learning_rate": None,
    "learning_rates": {},
    "records": 0,
    "records_sha256": "",
}


def counted(ledger: StepLedger) -> StepFacts:
    """Return a step's facts as far as its episodes determine them."""
    fates = ledger.episodes
    return StepFacts(
        step=ledger.step,
        attempt=ledger.attempt,
        episodes=len(fates),
        trained=sum(fate.fate == "trained" for fate in fates),
        dropped=dict(Counter(fate.why for fate in fates if fate.fate == "dropped")),
        retried=sum(fate.retries > 0 for fate in fates),
        issued_again=sum(fate.issued - 1 for fate in fates),
        sampled_tokens=sum(fate.sampled_tokens for fate in fates),
        captured_tokens=sum(fate.captured_tokens for fate in fates),
        trained_tokens=sum(fate.trained_tokens for fate in fates),
        matched_tokens=sum(fate.matched_tokens for fate in fates),
    )


def _fate(facts: RunFacts, ledger: StepLedger, fate: EpisodeFate) -> Iterator[str]:
    named = f"episode {fate.episode_id}"
    found = EpisodeId.find(fate.episode_id)
    if found is None or (found.job, found.step) != (JobRef(facts.job.job_id), ledger.step):
        yield f"{named} is not one of step {ledger.step}"
    if not fate.matched_tokens <= fate.trained_tokens <= fate.sampled_tokens >= fate.captured_tokens:
        yield f"the tokens of {named} do not add up"
    trained = fate.fate == "trained"
    if fate.fate == "not_learned" or trained != (fate.trained_tokens > 0) or trained != (not fate.why):
        yield f"{named} was {fate.fate}, which its tokens or its reason contradict"


def episode_problems(
    facts: RunFacts, files: BundleFiles, ledgers: Mapping[int, StepLedger], log: EventLog | None
) -> Iterator[str]:
    """Name the contradictions of stored episodes with ledgers, facts and log (None if it is damaged)."""
    expected = {step: list(ledger.episodes) for step, ledger in ledgers.items()}
    for fate in facts.not_learned:
        expected.setdefault(step_of_episode(fate.episode_id), []).append(fate)
    for step, fates in sorted(expected.items()):
        name = EPISODES.format(step=step)
        stored = {fate.sha256: fate for fate in fates if fate.sha256}
        if name not in files.names:
            if stored and _must_be_there(facts, step):
                yield f"{name}: missing"
            continue
        read = _Step(name, log)
        yield from read.compare(stored, files.lines(name))
        if log is not None and step in ledgers:
            yield from read.compare_reward(step, ledgers[step])


def _must_be_there(facts: RunFacts, step: int) -> bool:
    """Whether the service keeps the episodes of a step."""
    played = facts.job.spec.played
    keep = played.keep_episodes if played else None
    newest = max((one.step for one in facts.steps), default=0)
    return keep is None or step > newest - keep


class _Step:
    """The episodes of one step."""

    def __init__(self, name: str, log: EventLog | None) -> None:
        self._name, self._log = name, log
        self._trained: list[Trajectory] = []

    def compare(self, stored: dict[str, EpisodeFate], lines: Iterable[bytes]) -> Iterator[str]:
        """Name the episodes that differ from the submitted ones, and their contradictions."""
        missing, others, named = dict(stored), 0, 0
        for line in lines:
            fate = missing.pop(hashlib.sha256(line).hexdigest(), None)
            if fate is None:
                others += 1
                continue
            for fault in self._faults(fate, line):
                named += 1
                if named <= _MOST_NAMED:
                    yield f"{self._name}: episode {fate.episode_id} {fault}"
        for fate in list(missing.values())[:_MOST_NAMED]:
            yield f"{self._name}: episode {fate.episode_id} differs from the submitted one"
        if (more := len(missing) - _MOST_NAMED) > 0:
            yield f"{self._name}: and {more} more episodes"
        if others > len(missing):
            yield f"{self._name}: it has episodes that were not recorded"

    def _faults(self, fate: EpisodeFate, line: bytes) -> Iterator[str]:
        try:
            result = EpisodeResult.model_validate_json(line)
        except ValidationError:
            yield "is not a record of one"
            return
        trained = [one for one in result.trajectories if one.trained]
        if result.episode_id != fate.episode_id:
            yield f"is called {result.episode_id} in its record"
        if fate.fate == "not_learned":
            return
        if fate.sampled_tokens != sum(one.sampled_tokens for one in trained):
            yield "has another number of sampled tokens than its ledger"
        if fate.retries != max(one.retries for one in result.trajectories):
            yield "has other retries than its ledger"
        reasons = {one.stop_reason.value for one in result.trajectories}
        if fate.why not in reasons | _OWN_REASONS | {""}:
            yield f"was dropped as {fate.why}, which its record does not say"
        self._trained += trained
        for one in result.trajectories:
            yield from self._compare_shown(result.episode_id, one)

    def _compare_shown(self, episode_id: str, one: Trajectory) -> Iterator[str]:
        """Compare what the log shows of an episode."""
        shown = [] if self._log is None else self._log.episodes.pop((episode_id, one.agent), [])
        for event in shown:
            if not _shows(event, one):
                yield "differs from what the log shows of it"

    def compare_reward(self, step: int, ledger: StepLedger) -> Iterator[str]:
        """Compare the mean return in the log with the episodes."""
        assert self._log is not None
        whole = all(fate.sha256 for fate in ledger.episodes)
        found = [body for _, body in self._log.steps.get(step, [])]
        returns = [one.episode_return for one in self._trained if one.completed]
        if not whole or not found or len({one.agent for one in self._trained}) != 1:
            return
        logged = found[-1].reward_mean
        if not _is_mean(logged, returns):
            yield f"{self._name}: the mean return in the log is {logged}, not that of the episodes"


def _is_mean(logged: float | None, returns: list[float]) -> bool:
    if logged is None or not returns:
        return logged is None and not returns
    return math.isclose(logged, sum(returns) / len(returns), rel_tol=1e-9, abs_tol=1e-9)


def _shows(event: EpisodeEvent, one: Trajectory) -> bool:
    """Whether an event shows this trajectory. Long texts are cut in the log."""
    texts = len(event.transcript) == len(one.transcript) and all(
        shown[0] == own[0] and own[1].startswith(shown[1])
        for shown, own in zip(event.transcript, one.transcript, strict=True)
    )
    return texts and (event.seed, event.stop_reason, event.episode_return) == (
        one.seed,
        one.stop_reason.value,
        one.episode_return,
    )
