"""The next step's episodes are prepared while the policy learns, and sampled only when its version is out."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from backend.policies.early_requests import EarlyRequests
from tinkergym.schema.events import JobState
from tinkergym.schema.sampling import SampleFailure, SampleRequest

PATIENCE_SECONDS = 120.0


class Engine:
    """Takes down what it is asked for."""

    def __init__(self):
        self.asked = []

    def submit(self, requests, deliver):
        self.asked.append(([request.request_id for request in requests], deliver))


def request(name, policy="job", version=3):
    return SampleRequest(
        request_id=name, policy=policy, policy_version=version, prompt_ids=[5], max_tokens=1, seed=1
    )


def in_the_second_update(lab, learner, **settings):
    """Start a job of three steps and return it when the learner stands in the update of step 2."""
    learner.hold_at = 2
    job_id = lab.start(steps=3, **settings)
    lab.play_step(job_id)
    lab.play_step(job_id)
    assert learner.reached.wait(PATIENCE_SECONDS)
    return job_id


def test_holds_requests_of_awaited_version_and_keeps_their_batches():
    engine, first, second = Engine(), object(), object()
    early = EarlyRequests(engine)
    early.expect("job", 3)
    assert early.keep(request("a"), first)
    assert early.keep(request("b"), second)
    assert early.keep(request("c"), first)
    assert engine.asked == []
    early.published("job")
    assert engine.asked == [(["a", "c"], first), (["b"], second)]
    assert not early.keep(request("d"), first)


@pytest.mark.parametrize(("policy", "version"), [("job", 2), ("job", 4), ("job", None), ("other", 3)])
def test_does_not_make_other_policies_and_versions_wait(policy, version):
    early = EarlyRequests(Engine())
    early.expect("job", 3)
    assert not early.keep(request("a", policy, version), object())


def test_fails_requests_by_name_if_version_never_comes():
    answers = []
    early = EarlyRequests(Engine())
    early.expect("job", 3)
    early.keep(request("a"), answers.extend)
    early.forget("job")
    (answer,) = answers
    assert isinstance(answer, SampleFailure)
    assert answer.error.type == "PolicyVersionGoneError"


@pytest.mark.parametrize(
    "rollout", [pytest.param("server", marks=pytest.mark.full("leases as a client does")), "client"]
)
def test_leases_episodes_during_update_and_samples_them_by_its_version(lab, learner, rollout, monkeypatch):
    job_id = in_the_second_update(lab, learner, rollout=rollout)
    requests = lab.lease(job_id)
    assert [request.step for request in requests] == [3] * 4
    engine = lab.pool.own.engine
    sampled, kept = engine.stats().sampled_tokens, threading.Event()
    keep = lab.pool.own.early.keep

    def noting(*arguments):
        if keep(*arguments):
            kept.set()
            return True
        return False

    monkeypatch.setattr(lab.pool.own.early, "keep", noting)
    with ThreadPoolExecutor() as threads:
        playing = threads.submit(lab.play, requests)
        assert kept.wait(PATIENCE_SECONDS)
        assert engine.stats().sampled_tokens == sampled
        learner.go_on.set()
        results = playing.result(PATIENCE_SECONDS)
    assert {turn.policy_version for result in results for turn in result.trajectory.turns} == {2}
    assert lab.submit(job_id, results) == ["accepted"] * 4
    lab.until_state(job_id, JobState.COMPLETED)
    assert lab.events(job_id, "step")[-1].metrics["parity_max"] < 1e-5


@pytest.mark.parametrize(
    "settings",
    [
        {"share": 0.02, "rollout": "script"},
        pytest.param(
            {"share": 0.02, "rollout": "server", "deterministic": True},
            marks=pytest.mark.full("waits for its episodes as a script's job does"),
        ),
        # As if an update took a good part of the time that an episode has.
        {"share": 0.0, "rollout": "server"},
    ],
)
def test_starts_no_episodes_early_that_this_could_change(lab, learner, settings, monkeypatch):
    monkeypatch.setattr("backend.jobs.played_job._EARLY_SHARE", settings["share"])
    settings = {name: value for name, value in settings.items() if name != "share"}
    job_id = in_the_second_update(lab, learner, **settings)
    # What is begun early is on the board before the update begins.
    assert lab.lease(job_id, wait_seconds=0) == []
    learner.go_on.set()


def test_lets_nobody_wait_when_job_fails_while_learning(lab, learner):
    job_id = in_the_second_update(lab, learner, rollout="server")
    requests = lab.lease(job_id)
    learner.dies = True
    with ThreadPoolExecutor() as threads:
        playing = threads.submit(lab.play, requests)
        learner.go_on.set()
        results = playing.result(PATIENCE_SECONDS)
    assert {result.trajectory.stop_reason.value for result in results} == {"sampling_failed"}
