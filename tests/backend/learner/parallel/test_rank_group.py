"""What a group makes of ranks that hang, stumble or answer nonsense. They are threads with a script."""

from __future__ import annotations

import multiprocessing
import pickle
import queue
import threading

import pytest

from backend.errors import RankLostError
from backend.learner.parallel.rank_group import RankGroup
from tinkergym.errors import ConflictError, InternalServiceError


class Unreadable:
    """Can be pickled, but not back."""

    def __reduce__(self):
        return (int, ("no number",))


class ScriptedRank:
    """Answers each method as `script` says: a value, an error, nothing (...); "deaf" reads nothing at all.

    The first one passes every call on to the others.
    """

    def __init__(self, script) -> None:
        self.pid = 0
        self.others = []
        self.passed_on = queue.SimpleQueue()
        self.killed = threading.Event()
        self.pipe, self._theirs = multiprocessing.Pipe()
        self._script = script
        self._theirs.send_bytes(pickle.dumps((0, True, None)))
        self._thread = threading.Thread(target=self._live, daemon=True)

    def start(self) -> None:
        if self._script != "deaf":
            self._thread.start()

    def _live(self) -> None:
        while True:
            message = self._next()
            if message is None:
                return
            call, name, *_ = pickle.loads(message)
            answer = self._script.get(name, name)
            if answer is ...:
                continue
            if answer == "dies":
                self._theirs.close()
                return
            if answer == "late":  # the answer to the call before comes with this one's
                self._theirs.send_bytes(pickle.dumps((call - 1, True, "stale")))
            self._theirs.send_bytes(pickle.dumps((call, not isinstance(answer, Exception), answer)))

    def _next(self):
        if self.others is None:
            return self.passed_on.get()
        try:
            message = self._theirs.recv_bytes()
        except (EOFError, OSError):
            message = None
        for other in self.others:
            other.passed_on.put(message)
        return message

    def how_it_ended(self) -> str:
        return "ended in a script"

    def kill(self) -> None:
        self.killed.set()

    def join(self, seconds: float) -> None:
        self.passed_on.put(None)
        if self._thread.ident:
            self._thread.join()
        self._theirs.close()


@pytest.fixture
def make_group():
    groups = []

    def make(*scripts, **settings):
        group = RankGroup(**{"silence_seconds": 30.0, **settings})
        ranks = [ScriptedRank(script) for script in scripts]
        first, *others = ranks
        first.others = others
        for other in others:
            other.others = None
        for rank in ranks:
            rank.start()
        group.take(ranks)
        groups.append(group)
        return group, ranks

    yield make
    for group in groups:
        group.close()


def test_returns_what_the_first_rank_answers(make_group):
    group, _ = make_group({"who": "first"}, {"who": "second"})
    assert group.ask("who") == "first"
    assert not group.broken


def test_ignores_an_answer_to_an_earlier_call(make_group):
    group, _ = make_group({"weights": "late"}, {"weights": "late"})
    assert group.ask("weights") == "late"


def test_raises_what_all_ranks_refuse_and_keeps_the_group_whole(make_group):
    refusals = [{"load": ConflictError("there is one", code="exists")} for _ in range(2)]
    group, _ = make_group(*refusals)
    with pytest.raises(ConflictError, check=lambda error: error.code == "exists"):
        group.ask("load")
    assert group.ask("logprobs") == "logprobs"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("dies", "rank 1 ended in a script in step"),
        (RuntimeError("out of memory"), "rank 1 failed in step: out of memory"),
        (Unreadable(), "rank 1 answered step unreadably"),
        (ConflictError("mine alone"), r"rank 1 refused step \(mine alone\), and then rank 0 silent"),
    ],
)
def test_ends_group_with_reason_of_a_rank_others_wait_for(make_group, answer, words):
    group, ranks = make_group({"step": ...}, {"step": answer}, patience_seconds=0.1)
    with pytest.raises(RankLostError, match=words) as lost:
        group.ask("step")
    assert (lost.value.code == "out_of_memory") == ("memory" in words)
    assert group.broken
    assert all(rank.killed.is_set() for rank in ranks)
    with pytest.raises(RankLostError):
        group.ask("anything")


def test_names_the_dead_rank_and_not_one_failing_for_it(make_group):
    group, _ = make_group({"step": RuntimeError("connection reset")}, {"step": "dies"})
    with pytest.raises(RankLostError):
        group.ask("step")


def test_calls_a_rank_that_never_listens_silent_instead_of_hanging(make_group):
    group, ranks = make_group("deaf", {}, silence_seconds=0.5)
    with pytest.raises(RankLostError):
        group.ask("step", bytes(50_000_000))  # more than a socket holds
    assert ranks[0].killed.is_set()


def test_says_that_a_closed_group_is_closed(make_group):
    group, _ = make_group({}, {})
    group.close()
    with pytest.raises(InternalServiceError, check=lambda error: error.code == "closed"):
        group.ask("anything")
