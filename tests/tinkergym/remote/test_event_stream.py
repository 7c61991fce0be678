from contextlib import contextmanager

import pytest

from tinkergym.errors import ServiceUnavailableError
from tinkergym.remote.event_stream import follow
from tinkergym.schema.events import Event, JobState, StateEvent


def written(seq, state=JobState.RUNNING):
    event = Event(seq=seq, job_id="job-1", time=0.0, body=StateEvent(state=state))
    return b"event: x\r\ndata: " + event.model_dump_json().encode() + b"\n\n"


class Wire:
    """Stands for a connection: each stream is a list of chunks, or an error."""

    def __init__(self, *streams):
        self.streams = list(streams)
        self.asked_after = []

    @contextmanager
    def stream(self, method, path, *, headers, timeout_seconds):
        self.asked_after.append(headers.get("Last-Event-ID"))
        stream = self.streams.pop(0)
        if isinstance(stream, Exception):
            raise stream
        yield iter(stream)


def followed(wire, **settings):
    return [event.seq for event in follow(wire, "job-1", sleep=lambda seconds: None, **settings)]


def test_ends_events_with_the_final_state():
    wire = Wire([b": heartbeat\n\n", written(1) + written(2), written(3, JobState.COMPLETED), written(4)])
    assert followed(wire) == [1, 2, 3]


def test_reads_event_in_pieces_whole():
    whole = written(1) + written(2, JobState.COMPLETED)
    assert followed(Wire([whole[i : i + 7] for i in range(0, len(whole), 7)])) == [1, 2]


def test_resumes_broken_connection_where_it_broke_without_duplicates():
    cut = written(2)[:-5]
    wire = Wire([written(1), cut], [written(1), written(2)], [written(3, JobState.FAILED)])
    assert followed(wire) == [1, 2, 3]
    assert wire.asked_after == [None, "1", "2"]


def test_mentions_absent_service_once_and_then_raises(said_by):
    away = [ServiceUnavailableError("nobody answers")] * 1000
    with pytest.raises(ServiceUnavailableError):
        followed(Wire(*away), patience_seconds=30.0)
    assert len(said_by("tinkergym.remote.event_stream")) == 1


def test_ends_by_what_the_check_raises():
    def check():
        raise RuntimeError("the worker broke")

    with pytest.raises(RuntimeError):
        followed(Wire([written(1)]), check=check)
