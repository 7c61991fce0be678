"""Stored episodes in brief and whole, from rows and from files."""

import time
import zlib

import numpy as np
import pytest

from backend.episodes.logprob_gaps import LogprobGaps, gaps_of
from backend.store.kept_episodes import KeptEpisodes
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import JobState

pytestmark = pytest.mark.service

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x00 'quoted' \"twice\""


def result(job_id, step, index, *, reward=1.0, said="b2", reason="terminated", error=""):
    turn = {
        "segment": 0,
        "start": 2,
        "end": 4,
        "policy_version": 3,
        "finish_reason": "stop",
        "observation": "Play on." if error else "Play.",
        "action": said,
        "reward": reward,
        "metrics": {"tool_errors": 1.0, "malformed_tool_calls": 2.0} if error else {},
    }
    segment = {
        "token_ids": [1, 2, 3, 4],
        "loss_mask": [False, False, True, True],
        "sampling_logprobs": [None, None, -0.5, -1.0],
    }
    seat = {
        "segments": [segment],
        "turns": [turn],
        "terminated": True,
        "truncated": False,
        "stop_reason": reason,
        "error": error,
        "seed": 5,
        "task_index": index,
    }
    return EpisodeResult.model_validate(
        {"episode_id": f"{job_id}:{step}:{index}", "lease_id": "l", "trajectories": [seat]}
    )


@pytest.fixture
def run(gateway, client, spec):
    """Return a job with two episodes of step 1 in a file, and three of step 2 in rows."""
    spec = {**spec, "algorithm": {"group_size": 2, "groups_per_step": 2}}
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    service = gateway.store.service()
    lease = service.acquire(job_id, "worker", 30, now=time.time())
    service.set_state(lease, JobState.RUNNING)
    packed = [
        zlib.compress(result(job_id, 1, index, said=said).model_dump_json().encode())
        for index, said in enumerate([HOSTILE, "A1"])
    ]
    KeptEpisodes(gateway.config.job_files.below(job_id)).write(1, packed, epoch=1)
    failed = result(job_id, 2, 2, reward=0.0, reason="environment_error", error="KeyError: 'board'")
    service.save_episodes(lease, 2, [result(job_id, 2, 1, reward=-1.0), failed, result(job_id, 2, 0)])
    return job_id


def rows(client, job_id, **query):
    return client.get(f"/v1/jobs/{job_id}/episodes/rows", params=query).json()


def test_lists_whole_steps_newest_first(client, run):
    page = rows(client, run, limit=1)
    assert (page["rows"]["step"], page["rows"]["index"]) == ([2, 2, 2], [0, 1, 2])
    assert page["rows"]["episode_return"] == [1.0, -1.0, 0.0]
    assert page["rows"]["completed"] == [True, True, False]
    assert page["rows"]["sampled_tokens"] == [2, 2, 2]
    assert (page["rows"]["task"], page["rows"]["tool_errors"]) == ([0, 1, 2], [0, 0, 3])
    assert (page["next_before"], page["steps"], page["read"], page["group_size"]) == (2, 2, 1, 2)
    last = rows(client, run, before=page["next_before"])
    assert (last["rows"]["step"], last["next_before"]) == ([1, 1], None)


@pytest.mark.parametrize(
    ("text", "found"), [("a1", [(1, 1)]), ("keyerror", [(2, 2)]), ("ONERROR", [(1, 0)]), ("never said", [])]
)
def test_finds_episodes_by_what_was_said(client, run, text, found):
    page = rows(client, run, text=text)
    assert list(zip(page["rows"]["step"], page["rows"]["index"], strict=True)) == found
    assert page["read"] == 2


def test_finds_episodes_that_began_alike(client, run):
    page = rows(client, run, like=f"{run}:2:1")
    assert list(zip(page["rows"]["step"], page["rows"]["index"], strict=True)) == [
        (2, 0),
        (2, 1),
        (1, 0),
        (1, 1),
    ]
    assert rows(client, run, like=f"{run}:2:2")["rows"]["index"] == [2]
    assert rows(client, run, like=f"{run}:7:7")["rows"]["index"] == []
    assert client.get(f"/v1/jobs/{run}/episodes/rows?like=x").is_client_error


def test_shows_new_episodes_of_an_open_step(gateway, client, run):
    assert len(rows(client, run, first_step=2)["rows"]["step"]) == 3
    service = gateway.store.service()
    lease = service.acquire(run, "other", 30, now=time.time() + 100)
    service.save_episodes(lease, 2, [result(run, 2, 3)])
    assert len(rows(client, run, first_step=2)["rows"]["step"]) == 4


def test_shows_one_episode_with_its_group(client, run):
    view = client.get(f"/v1/jobs/{run}/episodes/{run}:2:1").json()
    assert view["episode"]["trajectories"][0]["turns"][0]["reward"] == -1.0
    assert [(one["index"], one["episode_return"]) for one in view["group"]] == [(0, 1.0), (1, -1.0)]
    assert (view["group_number"], view["fate"], view["environment"]) == (0, None, "board/TicTacToeVs-v0")
    # The gateway of these tests has no tokenizers.
    assert view["texts"]["agent_0"]["segments"] is None
    assert "nano" in view["texts"]["agent_0"]["why_not"]


def test_shows_gaps_and_calls_that_branch(gateway, client, run):
    gaps = LogprobGaps()
    episode = result(run, 2, 0)
    (seat,) = episode.trajectories
    gaps.add(2, (0, seat.agent, 0), seat.segments[0], seat.segments[0].loss_mask, np.asarray([-0.5, 0.0]))
    gaps_of(gateway.config.job_files.below(run)).write(2, gaps.take()[2], epoch=1)
    view = client.get(f"/v1/jobs/{run}/episodes/{run}:2:0").json()
    assert (view["logprob_gaps"], view["parents"]) == ({"agent_0": [[0.0, 1.0]]}, {})


def test_hands_hostile_text_on_unchanged_as_json(client, run):
    answer = client.get(f"/v1/jobs/{run}/episodes/{run}:1:0")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["episode"]["trajectories"][0]["turns"][0]["action"] == HOSTILE


@pytest.mark.parametrize("episode_id", ["nonsense", "{run}:1:7", "{run}:9:0", "job-other:1:0", "{run}:1:0:0"])
def test_names_an_episode_that_is_not_stored(client, run, episode_id):
    answer = client.get(f"/v1/jobs/{run}/episodes/{episode_id.format(run=run)}")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NotFoundError")


def test_shows_nothing_of_another_tenants_episodes(gateway, run):
    with gateway.client("bob") as bob:
        for path in ("rows", f"{run}:1:0"):
            assert bob.get(f"/v1/jobs/{run}/episodes/{path}").status_code == 404
