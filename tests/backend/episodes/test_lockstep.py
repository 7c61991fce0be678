from __future__ import annotations

import queue
import threading

import pytest

from backend.episodes.lockstep import LockstepGate
from tinkergym.errors import ServiceUnavailableError
from tinkergym.schema.events import ErrorView
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

PATIENCE_SECONDS = 120.0


class Engine:
    """Remembers the batches it was given."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.batches: list[list[str]] = []
        self.failure = failure
        self.holds = False
        """Whether it answers no batch."""
        self.receivers: queue.Queue = queue.Queue()

    def submit_together(self, requests, deliver):
        if self.failure is not None:
            raise self.failure
        self.batches.append([request.session_id for request in requests])
        self.receivers.put(deliver)
        answers = [
            Completion(
                request_id=request.request_id,
                token_ids=[1],
                sampling_logprobs=[0.0],
                finish_reason="stop",
                policy_version=0,
            )
            for request in requests
        ]
        if not self.holds:
            deliver(answers)


class Table:
    """A gate, the episodes that are played, and the answers that came."""

    def __init__(self, playing: list[str], engine: Engine | None = None, **settings: bool | str) -> None:
        self.playing, self.engine = playing, engine or Engine()
        self.answers: queue.Queue[list[Completion | SampleFailure]] = queue.Queue()
        self.gate = LockstepGate(self.engine, lambda: self.playing, **settings)

    def ask(self, *leases: str, turn: int = 0, policy: str = "job-1") -> None:
        requests = [
            SampleRequest(
                request_id=f"{lease}/{turn}", policy=policy, prompt_ids=[1], max_tokens=1, session_id=lease
            )
            for lease in leases
        ]
        self.gate.submit(requests, lambda answers: self.answers.put(list(answers)))

    def answered(self, count: int) -> list[Completion | SampleFailure]:
        found: list[Completion | SampleFailure] = []
        while len(found) < count:
            found += self.answers.get(timeout=PATIENCE_SECONDS)
        return found


@pytest.fixture
def table():
    tables: list[Table] = []

    def lay(*arguments, **settings) -> Table:
        tables.append(Table(*arguments, **settings))
        return tables[-1]

    yield lay
    for made in tables:
        made.gate.close()


def test_samples_a_turn_as_one_batch_in_order_once_complete(table):
    three = table(["a", "b", "c"])
    three.ask("c", "a")
    assert three.engine.batches == []
    three.ask("b")
    three.answered(3)
    assert three.engine.batches == [["a", "b", "c"]]


def test_does_not_wait_for_an_ended_episode(table):
    two = table(["a", "b"])
    two.ask("b")
    two.playing = ["b"]
    two.gate.check_again()
    two.answered(1)
    assert two.engine.batches == [["b"]]


def test_samples_once_a_request_repeated_after_a_lost_connection(table):
    one = table(["a", "b"])
    one.ask("a")
    one.ask("a")
    one.ask("b")
    one.answered(3)
    assert one.engine.batches == [["a", "b"]]


def test_answers_lost_request_from_memory_without_spoiling_later_batches(table):
    one = table(["a", "b"])
    one.ask("a", "b")
    lost = one.answered(2)[0]
    one.ask("a")
    assert one.answered(1) == [lost]
    one.ask("a", "b", turn=1)
    one.answered(2)
    assert one.engine.batches == [["a", "b"], ["a", "b"]]


def test_gives_same_answer_to_request_repeated_while_it_is_computed(table):
    engine = Engine()
    one = table(["a"], engine)
    again = engine.submit_together

    def asked_again_meanwhile(requests, deliver):
        one.ask("a")
        again(requests, deliver)

    engine.submit_together = asked_again_meanwhile
    one.ask("a")
    assert len(one.answered(2)) == 2
    assert engine.batches == [["a"]]


def test_rejects_requests_under_a_void_lease(table):
    one = table(["a"])
    one.ask("old")
    (answer,) = one.answered(1)
    assert isinstance(answer, SampleFailure)
    assert answer.error.type == "ConflictError"


def test_does_not_couple_a_scripts_requests(table):
    script = table(["a", "b"], one_by_one=True)
    script.ask("b")
    script.answered(1)
    assert script.engine.batches == [["b"]]


def test_fails_requests_by_the_error_of_a_failing_engine(table):
    broken = table(["a"], Engine(ServiceUnavailableError("closing")))
    broken.ask("a")
    (answer,) = broken.answered(1)
    assert isinstance(answer, SampleFailure)
    assert answer.error.type == "ServiceUnavailableError"


def test_retries_failed_request_also_while_another_policys_are_computed(table):
    engine = Engine()
    two = table(["a", "b"], engine)
    compute, failures = engine.submit_together, [ServiceUnavailableError("once")]

    def fails_once(requests, deliver):
        if requests[0].policy == "job-1" and failures:
            raise failures.pop()
        if not engine.batches:  # the other policy's, in the same turn
            two.ask("a")
        compute(requests, deliver)

    engine.submit_together = fails_once
    two.ask("a")
    two.ask("b", policy="job-2")
    first, other = two.answered(2)
    assert (type(first), type(other)) == (SampleFailure, Completion)
    two.ask("b", turn=1, policy="job-2")
    assert {type(answer) for answer in two.answered(2)} == {Completion}
    assert engine.batches == [["b"], ["a"], ["b"]]


def test_answers_pending_requests_when_closing(table):
    half = table(["a", "b"])
    half.ask("a")
    half.gate.close()
    (answer,) = half.answered(1)
    assert isinstance(answer, SampleFailure)
    half.ask("b")
    assert isinstance(half.answered(1)[0], SampleFailure)


def test_gives_up_computed_batch_when_closing(table):
    engine = Engine()
    engine.holds = True
    one = table(["a"], engine)
    one.ask("a")
    receiver = engine.receivers.get(timeout=PATIENCE_SECONDS)
    assert not receiver.gone
    closing = threading.Thread(target=one.gate.close)
    closing.start()
    while not receiver.gone:  # until the gate is closed
        closing.join(0.001)
    receiver([SampleFailure(request_id="a/0", error=ErrorView(type="x", message="nobody waits"))])
    closing.join(PATIENCE_SECONDS)
    (answer,) = one.answered(1)
    assert isinstance(answer, SampleFailure)
    assert answer.error.type == "ServiceUnavailableError"


def test_tells_engine_whose_batch_it_is(table):
    one = table(["a"], owner="ada")
    one.ask("a")
    one.answered(1)
    assert one.engine.batches == [["ada/a"]]


def test_takes_turns_between_seats_of_an_episode_in_lease():
    table = Table(["a", "b"])
    table.ask("a.1")
    table.ask("b")
    table.answered(2)
    assert table.engine.batches == [["a.1", "b"]]
    # The same request again, after a lost connection, is answered from memory.
    table.ask("a.1")
    table.answered(1)
    assert len(table.engine.batches) == 1
    table.gate.close()
