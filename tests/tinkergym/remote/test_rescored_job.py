"""Jobs that train further on rescored episodes: on whose policy, and how their data is rendered."""

from __future__ import annotations

import pytest

import tinkergym as tg
from tinkergym.datasets.stored_episodes import StoredEpisodes, stored_episodes
from tinkergym.evaluation.rescore import rescore
from tinkergym.remote.rescored_job import RescoredJob
from tinkergym.testing.made_up_episodes import stored_record

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
SMALL = {"steps": 3, "rollout": "client", "algorithm": {"group_size": 2, "groups_per_step": 1}}


def rescored(client, job, *, agent="agent_0"):
    """Episodes of a job whose order the new reward turns around."""
    records = [stored_record(n, float(n), job_id=job.id) for n in range(4)]
    found = stored_episodes(job.spec, records, origin=job.id)
    for one in found:
        object.__setattr__(one, "trajectory", one.trajectory.model_copy(update={"agent": agent}))
    report = rescore(job.spec, StoredEpisodes(found), lambda episode: -episode.reward)
    return RescoredJob(report, client._api, job.view(), client.submit)


@pytest.mark.parametrize("kind", ["sft", "preference"])
def test_renders_data_of_continuation_as_the_job_did(client, kind):
    job = client.train("board/TicTacToeVs-v0", chat_template=TEMPLATE, **SMALL)
    job.wait()
    started = getattr(rescored(client, job), kind)(steps=1)
    assert (started.spec.kind, started.spec.chat_template) == (kind, TEMPLATE)
    assert started.spec.initial_policy == f"{job.id}@3"


def test_begins_continuation_of_game_with_its_policy(client):
    job = client.train("board/TicTacToeVs-v0", **SMALL)
    job.close()
    adapter = tg.LoRA(rank=2)
    agents = {"x": tg.Train(adapter=adapter), "o": tg.Train()}
    view = job.view()
    view = view.model_copy(update={"spec": view.spec.model_copy(update={"agents": agents})})
    report = RescoredJob(rescored(client, job, agent="x"), client._api, view, lambda spec: spec)
    wanted = report.sft(steps=1)
    assert (wanted.initial_policy, wanted.adapter) == (f"{job.id}/x", adapter)
