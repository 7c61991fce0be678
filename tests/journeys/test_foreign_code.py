"""What environments see of the service that plays them, and other users of what it writes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import tinkergym as tg

pytestmark = pytest.mark.service

AFAR = {"env_kwargs": {"how": "variables"}}
SEEN = {"CANARY_KEY": 0.0, "PACK_KEY": 1.0, "ray": 0.0}


@pytest.fixture(scope="module")
def job(service):
    with tg.Client() as client:
        job = client.train(
            "afar/Env-v0",
            **AFAR,
            steps=1,
            algorithm=tg.GRPO(group_size=2, groups_per_step=1),
            sampling=tg.Sampling(max_turn_tokens=4),
        )
        job.wait(warn=False)
        yield job


def test_shows_environments_of_jobs_only_listed_variables(job):
    assert [{name: one.metrics[name] for name in SEEN} for one in job.episodes()] == [SEEN, SEEN]


def test_shows_evaluated_environments_only_listed_variables(client):
    metrics = client.policy("nano", max_turn_tokens=4).evaluate("afar/Env-v0", **AFAR, episodes=1).metrics
    assert {name: metrics[name] for name in SEEN} == SEEN


def test_lets_no_other_user_reach_files_of_a_job(job):
    folder = Path(os.environ["TINKERGYM_HOME"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # Ray opens its folders to everyone; they are below a closed one.
    below = [path for path in folder.rglob("*") if "ray" not in path.relative_to(folder).parts[1:]]
    assert any(job.id in path.parts for path in below)
    assert {path for path in below if path.lstat().st_mode & 0o077 and not path.is_symlink()} == set()
