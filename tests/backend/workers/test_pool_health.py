from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from backend.policies.pool_learner import PoolLearner
from backend.processes.memory import give_memory_back
from backend.workers import pool_jobs
from backend.workers.pool_health import Rest
from tinkergym.schema.events import JobState
from tinkergym.schema.sampling import SampleRequest


def test_rests_once_after_a_while_without_work():
    rest = Rest(30.0, now=100.0)
    assert [now for now in (101.0, 129.0, 130.0, 131.0, 500.0) if rest.is_due(now)] == [130.0]


def test_postpones_rest_by_work_and_makes_another_due():
    rest = Rest(30.0, now=100.0)
    rest.worked(120.0)
    assert not rest.is_due(149.0)
    assert rest.is_due(150.0)
    rest.worked(160.0)
    assert [now for now in (161.0, 189.0, 190.0) if rest.is_due(now)] == [190.0]


def test_starts_job_without_waiting_for_learner_that_hangs_at_rest():
    rests, goes_on = threading.Event(), threading.Event()

    class Hanging:
        def rest(self):
            rests.set()
            goes_on.wait(60)

    learner = PoolLearner(Hanging)
    with ThreadPoolExecutor(2) as threads:
        threads.submit(learner.rest)
        assert rests.wait(120)
        try:
            assert isinstance(threads.submit(learner.current).result(60.0), Hanging)
        finally:
            goes_on.set()


def resident_bytes():
    return psutil.Process().memory_info().rss


@pytest.fixture
def resting_lab(make_lab):
    return make_lab(pool_rest_seconds=1.0)


def fill_the_cache(lab):
    """Have so many long prompts answered that the engine's cache grows; return the most memory seen."""
    answers, seen = [], []
    requests = [
        SampleRequest(
            request_id=str(number),
            policy="nano",
            session_id=f"ada/{number}",
            prompt_ids=[5] * 450,
            max_tokens=1,
        )
        for number in range(256)
    ]
    lab.pool.routes.sample(requests, answers.extend)

    def answered():
        seen.append(resident_bytes())
        return len(answers) == len(requests)

    lab.until("-", answered)
    return max(seen)


@pytest.mark.full("fills a cache of many megabytes; `test_memory` gives memory back")
def test_gives_memory_back_at_rest_and_learns_same_bits(resting_lab):
    lab = resting_lab
    learned = []
    for _ in range(2):
        job_id = lab.start(deterministic=True)
        lab.play_on(job_id)
        assert lab.state(job_id) is JobState.COMPLETED
        learned.append(lab.weights(job_id, 2))
        give_memory_back()  # what earlier tests in this process have left
        before = resident_bytes()
        full = fill_the_cache(lab)
        assert full > before + 2**26
        lab.until("-", lambda half=(before + full) / 2: resident_bytes() < half)
    assert learned[0] == learned[1]


def test_returns_memory_when_a_job_ends(lab, monkeypatch):
    returned = threading.Event()
    # Not by the process's memory: another test's thread could free or take some meanwhile.
    monkeypatch.setattr(pool_jobs, "give_memory_back", returned.set)
    lab.play_on(lab.start())
    assert returned.wait(60)
