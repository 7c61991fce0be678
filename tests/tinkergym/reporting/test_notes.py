"""Notes of a job: completions to read, evaluations, updates and pauses, each told once."""

from __future__ import annotations

import json

from tests.tinkergym.reporting.jobs import end_event, job_view, step_event
from tinkergym.reporting import JsonlTracker
from tinkergym.reporting.notes import Notes
from tinkergym.reporting.reporter import Reporter
from tinkergym.schema.events import (
    EpisodeEvent,
    EvaluationEvent,
    Event,
    JobState,
    SettingChange,
    StateEvent,
    UpdateEvent,
)


def event(seq, body):
    return Event(seq=seq, job_id="job-1", time=float(seq), body=body)


def episode(seq, step, name="a", transcript=(("user", "2+2?"), ("assistant", "4"))):
    body = EpisodeEvent(
        step=step,
        episode_id=name,
        seed=0,
        stop_reason="terminated",
        episode_return=0.5,
        transcript=list(transcript),
    )
    return event(seq, body)


def evaluation(seq, step):
    body = EvaluationEvent(
        name="held-out",
        step=step,
        policy_version=step,
        episodes=8,
        failed_episodes=0,
        mean=0.5,
        low=0.25,
        high=0.75,
    )
    return event(seq, body.model_copy(update={"metrics": {"moves": 3.0}}))


def a_run():
    """Two steps with all that can happen around them."""
    change = SettingChange(name="learning_rate", old=0.1, new=0.01)
    return [
        evaluation(1, 0),
        step_event(2, 1),
        episode(3, 1),
        event(4, StateEvent(state=JobState.PAUSED, reason="by its owner")),
        event(5, StateEvent(state=JobState.RUNNING)),
        event(6, UpdateEvent(changes=[change], from_step=2)),
        step_event(7, 1),
        episode(8, 1),  # a resumed job shows it again
        step_event(9, 2),
        episode(10, 2, transcript=[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]),
        evaluation(11, 2),
        end_event(12),
    ]


def notes_of(events):
    notes = Notes()
    return [note for one in events for note in notes.of(one)]


def test_notes_completions_evaluations_updates_and_pauses_once_each():
    found = notes_of(a_run())
    assert [(note.seq, note.kind, note.step) for note in found] == [
        (1, "evaluation", 0),
        (3, "completion", 1),
        (4, "paused", 1),
        (5, "resumed", 1),
        (6, "update", 1),
        (10, "completion", 2),
        (11, "evaluation", 2),
        (12, "state", 2),
    ]
    assert found[0].values == {
        "eval/held-out/mean": 0.5,
        "eval/held-out/low": 0.25,
        "eval/held-out/high": 0.75,
        "eval/held-out/moves": 3.0,
    }
    assert (found[1].row["prompt"], found[1].row["completion"]) == ("2+2?", "4")
    assert "learning_rate" in found[4].text
    assert "[user] c" in found[5].row["completion"]


def told(folder, events):
    Reporter(job_view(), lambda check: iter(events), [JsonlTracker(folder)]).close(ended=True)
    lines = (folder / "job-1" / "notes.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_records_every_note_once_in_resumed_tracker(tmp_path):
    events = a_run()
    told(tmp_path, events[:4])
    path = tmp_path / "job-1" / "notes.jsonl"
    path.write_bytes(path.read_bytes()[:-3])  # killed while it wrote
    assert [line["seq"] for line in told(tmp_path, events)] == [1, 3, 4, 5, 6, 10, 11, 12]
    assert [line["seq"] for line in told(tmp_path, events)] == [1, 3, 4, 5, 6, 10, 11, 12]
    assert told(tmp_path, events)[0]["values"]["eval/held-out/mean"] == 0.5
