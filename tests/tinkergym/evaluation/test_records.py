import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.errors import ConflictError, InvalidRequestError
from tinkergym.evaluation.records import EpisodeRecord, RecordWriter, read_records
from tinkergym.trajectory.trajectory import StopReason, Trajectory, Turn


def record(seed=0, sample=0, reward=1.0, observation="?"):
    turn = Turn(
        segment=0,
        start=0,
        end=0,
        policy_version=0,
        finish_reason="stop",
        observation=observation,
        action="a",
        reward=reward,
    )
    trajectory = Trajectory(
        segments=[],
        turns=[turn],
        terminated=True,
        truncated=False,
        stop_reason=StopReason.TERMINATED,
        seed=seed,
    )
    return EpisodeRecord(
        episode_id=f"{seed}-{sample}", environment="x/Y-v0", seed=seed, sample=sample, trajectory=trajectory
    )


def test_reads_again_what_was_written(tmp_path):
    file = tmp_path / "new" / "run.jsonl"
    with RecordWriter(file, {"seed": 3}) as writer:
        writer.write(record(1))
        writer.write(record(1, 1))
    found = read_records(file)
    assert (found.settings, found.episodes) == ({"seed": 3}, [record(1), record(1, 1)])


def test_holds_the_agreed_keys_in_a_line(tmp_path):
    file = tmp_path / "run.jsonl"
    with RecordWriter(file, {}) as writer:
        writer.write(record(4))
    line = json.loads(file.read_text().splitlines()[1])
    assert {"episode_id", "environment", "seed", "trajectory"} <= set(line)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_preserves_any_text(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("records") / "run.jsonl"
    with RecordWriter(file, {"text": text}) as writer:
        writer.write(record(observation=text))
    found = read_records(file)
    assert (found.settings["text"], found.episodes[0].trajectory.turns[0].observation) == (text, text)


def test_continues_file_wherever_a_process_is_killed(tmp_path):
    whole = tmp_path / "whole.jsonl"
    with RecordWriter(whole, {"seed": 3}) as writer:
        for seed in range(3):
            writer.write(record(seed))
    content = whole.read_bytes()
    file = tmp_path / "run.jsonl"
    for size in range(0, len(content), 37):
        file.write_bytes(content[:size])
        with RecordWriter(file, {"seed": 3}) as writer:
            for seed in range(3):
                if (seed, 0) not in writer.done:
                    writer.write(record(seed))
        assert file.read_bytes() == content


def test_lets_no_two_processes_write_one_file(tmp_path):
    with (
        RecordWriter(tmp_path / "run.jsonl", {}),
        pytest.raises(ConflictError, check=lambda error: error.code == "in_use"),
    ):
        RecordWriter(tmp_path / "run.jsonl", {})
    RecordWriter(tmp_path / "run.jsonl", {}).close()


def test_rejects_other_settings_by_name(tmp_path):
    RecordWriter(tmp_path / "run.jsonl", {"seed": 3, "policy": "gold"}).close()
    with pytest.raises(ConflictError) as caught:
        RecordWriter(tmp_path / "run.jsonl", {"seed": 3, "policy": "legal"})
    assert caught.value.field == "--out"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"a": 1}', "it has no episode_id"),
        ("[1]", "it is not a JSON object"),
        ("5", "it is not a JSON object"),
        ("# Readme", "it is not a JSON object"),
    ],
)
def test_says_in_a_sentence_why_a_line_is_no_episode(tmp_path, line, why):
    file = tmp_path / "run.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(InvalidRequestError) as caught:
        read_records(file)
    assert caught.value.message == f"line 1 of {file} is not an episode: {why}"


def test_reads_file_without_settings(tmp_path):
    file = tmp_path / "run.jsonl"
    file.write_text(record(2).model_dump_json() + "\n")
    assert read_records(file).episodes == [record(2)]
