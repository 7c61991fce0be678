import pytest

from backend.gateway.event_chains import EventChains
from tinkergym.schema.certificate import EMPTY_CHAIN, chained
from tinkergym.schema.events import Event, WarningEvent


class Log:
    """A job's events, and how many were shown."""

    def __init__(self):
        self.events = []
        self.shown = 0

    def write(self, count):
        for _ in range(count):
            seq = len(self.events) + 1
            body = WarningEvent(name=str(seq), message="m")
            self.events.append(Event(seq=seq, job_id="job-1", time=0.0, body=body))

    def read(self, after, most):
        return self.events[after : after + most]

    def show(self, event):
        self.shown += 1
        return event


@pytest.fixture
def log():
    return Log()


def head_of(events):
    head = EMPTY_CHAIN
    for event in events:
        head = chained(head, event.model_dump_json().encode())
    return head


def ask(chains, log, **settings):
    return chains.up_to_now("job-1", **{"hides": False, "read": log.read, "shown": log.show, **settings})


def test_has_an_empty_chain_without_events(log):
    found = ask(EventChains(), log)
    assert (found.count, found.head_sha256) == (0, EMPTY_CHAIN)


def test_hashes_only_events_that_are_new_since_the_last_time(log):
    chains = EventChains()
    for written in (1200, 0, 3):
        log.write(written)
        found = ask(chains, log)
        assert (found.count, found.head_sha256) == (len(log.events), head_of(log.events))
        assert log.shown == len(log.events)


def test_gives_another_chain_to_whom_other_texts_are_shown(log):
    chains = EventChains()
    log.write(2)

    def hidden(event):
        return event.model_copy(update={"body": WarningEvent(name="w", message="<DATA>")})

    plain, hiding = ask(chains, log), ask(chains, log, hides=True, shown=hidden)
    assert hiding.head_sha256 == head_of(map(hidden, log.events)) != plain.head_sha256
    assert ask(chains, log).head_sha256 == plain.head_sha256


def test_chains_every_entry_and_their_order():
    ab = chained(chained(EMPTY_CHAIN, b"a"), b"b")
    assert ab == chained(chained(EMPTY_CHAIN, b"a"), b"b")
    assert ab != chained(chained(EMPTY_CHAIN, b"b"), b"a")
    assert ab != chained(EMPTY_CHAIN, b"ab")
