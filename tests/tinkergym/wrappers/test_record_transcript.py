import json
import multiprocessing
import resource
import signal
import warnings

import gymnasium as gym
import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError, StorageFullError
from tinkergym.wrappers import RecordTranscript, read_transcripts


class Count(tg.TextEnv):
    def start(self, options):
        self.left = 2
        return "begin"

    def reply(self, action):
        self.left -= 1
        return f"{self.left} left", 0.5, self.left == 0, {"metrics": {"said": float(len(action))}}


tg.register("transcript/Count-v0", Count)


def play(env, episodes=1, say="x"):
    for seed in range(episodes):
        env.reset(seed=seed)
        while not env.step(say)[2]:
            pass


def test_writes_an_episode_as_one_line_with_everything_said(tmp_path):
    path = tmp_path / "games.jsonl"
    play(RecordTranscript(tg.make("transcript/Count-v0"), path), say="größer\n")
    (line,) = path.read_text().splitlines()
    episode = json.loads(line)
    assert episode.pop("episode_id")
    step = {"action": "größer\n", "reward": 0.5, "truncated": False, "metrics": {"said": 7.0}}
    assert episode == {
        "environment": "transcript/Count-v0",
        "seed": 0,
        "options": None,
        "observation": "begin",
        "steps": [
            {**step, "observation": "1 left", "terminated": False},
            {**step, "observation": "0 left", "terminated": True},
        ],
        "return": 1.0,
        "ended": "terminated",
    }


def test_records_episode_that_is_left_as_abandoned(tmp_path):
    env = RecordTranscript(Count(), tmp_path / "games.jsonl")
    env.reset(seed=1)
    env.reset(seed=2)
    env.step("a")
    env.close()
    env.close()
    recorded = list(read_transcripts(tmp_path / "games.jsonl"))
    assert [(e["seed"], len(e["steps"]), e["ended"]) for e in recorded] == [
        (1, 0, "abandoned"),
        (2, 1, "abandoned"),
    ]


def test_records_numbers_and_arrays_of_other_environments_too(tmp_path):
    env = RecordTranscript(gym.make("CartPole-v1"), tmp_path / "poles.jsonl")
    play(env, say=0)
    (episode,) = read_transcripts(tmp_path / "poles.jsonl")
    assert len(episode["observation"]) == 4
    assert episode["return"] == len(episode["steps"])


def write_many(path, name):
    play(RecordTranscript(Count(), path), episodes=40, say=name * 20_000)


def test_mixes_no_lines_of_two_processes_in_one_file(tmp_path):
    path = tmp_path / "games.jsonl"
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=write_many, args=(path, name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    said = [line["steps"][0]["action"][0] for line in lines]
    assert sorted(said) == ["a"] * 40 + ["b"] * 40


def test_harms_no_later_line_by_killed_writers_half_one(tmp_path):
    path = tmp_path / "games.jsonl"
    play(RecordTranscript(Count(), path))
    with path.open("a") as file:
        file.write('{"episode_id": "torn')
    play(RecordTranscript(Count(), path), episodes=2)
    assert [episode["ended"] for episode in read_transcripts(path)] == ["terminated"] * 3


def test_warns_once_and_counts_on_a_full_disk(tmp_path):
    env = RecordTranscript(Count(), "/dev/full")
    with pytest.warns(UserWarning, match="no space is left") as warned:
        play(env)
    assert len([one for one in warned if "/dev/full" in str(one.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(env)
    assert env.lost == 2


def test_ends_episode_on_full_disk_if_asked_for():
    env = RecordTranscript(Count(), "/dev/full", strict=True)
    with pytest.raises(StorageFullError):
        play(env)


def test_leaves_no_part_of_an_episode_that_does_not_fit(tmp_path):
    path = tmp_path / "games.jsonl"
    env = RecordTranscript(Count(), path, strict=True)
    play(env)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
    try:
        with pytest.raises(StorageFullError):
            play(env, say="y" * 1000)
        after = path.read_bytes()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert after == before
    play(env)
    assert len(list(read_transcripts(path))) == 2


def test_rejects_immediately_file_that_cannot_be_written(tmp_path):
    with pytest.raises(InvalidRequestError) as caught:
        RecordTranscript(Count(), tmp_path / "missing" / "games.jsonl")
    assert caught.value.field == "path"
