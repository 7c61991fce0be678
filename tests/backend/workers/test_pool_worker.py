from __future__ import annotations

import shutil
import threading
from queue import SimpleQueue

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.config import ServiceConfig
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.episodes.lockstep import LockstepGate
from backend.errors import ConfigError, RankLostError
from backend.policies.pool_learner import PoolLearner
from backend.settings.gateway_limits import GatewayLimits
from backend.settings.served_models import PACKAGED_MODELS
from backend.store.image_rows import ImageRow
from backend.worker_url import unix_url
from backend.workers import pool_jobs
from backend.workers.endpoint import Player
from backend.workers.pool_worker import PoolWorker
from tests.backend.vlm import picture
from tinkergym.errors import InvalidRequestError, NotFoundError, PayloadTooLargeError, UnknownModelError
from tinkergym.schema.events import JobState
from tinkergym.schema.ids import SeatRef
from tinkergym.schema.operation import PoolProof
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.schema.structured import Regex
from tinkergym.schema.uploaded_data import ImageNames

MORE = pytest.mark.full("one of several of its kind")


def start(tmp_path, model="nano", **settings):
    config = ServiceConfig(data_dir=tmp_path, torch_threads=torch.get_num_threads(), **settings)
    return PoolWorker(config, pool_id="p", model=model, url=unix_url(config.run_dir / "s"), token="t")


def test_says_in_one_sentence_that_asked_gpu_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, check=lambda error: error.field == "placement.gpus"):
        start(tmp_path, placement={"gpus": 1})


def test_checks_in_worker_weights_too_large_to_check_at_submission(tmp_path):
    shutil.copytree(PACKAGED_MODELS["nano"], tmp_path / "nano")
    file = tmp_path / "nano" / "model.safetensors"
    weights = load_file(file)
    weights["lm_head.weight"][7, 7] = float("nan")
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(InvalidRequestError) as caught:
        start(tmp_path / "data", model=str(tmp_path / "nano"))
    assert caught.value.field == "model"


def test_rejects_unknown_model_by_name(tmp_path):
    with pytest.raises(UnknownModelError):
        start(tmp_path, model="nanoo")


def test_takes_no_job_that_was_cancelled_in_the_queue(lab):
    job_id = lab.start_later()
    lab.tenant.request_cancel(job_id)
    lab.pool.start_job(job_id)
    assert lab.state(job_id) is JobState.CANCELLED


def test_takes_job_once_however_often_it_is_given(lab):
    job_id = lab.start()
    lab.pool.start_job(job_id)
    lab.until_state(job_id, JobState.RUNNING)
    assert lab.service.job(job_id).attempt == 1


def test_says_where_it_listens_and_lives_until_closed(lab):
    (pool,) = lab.service.pools(0.0)
    assert (pool.pool_id, pool.model) == (lab.site.pool_id, "nano")
    lab.until("-", lambda: lab.service.pools(0.0)[0].seen_at > pool.seen_at)
    lab.replace_pool()
    assert lab.site.pool_id != pool.pool_id
    assert [pool.pool_id for pool in lab.service.pools(0.0)] == [lab.site.pool_id]


def test_hands_its_jobs_back_to_the_queue_when_closed(lab):
    job_id = lab.start()
    lab.until_state(job_id, JobState.RUNNING)
    lab.replace_pool(in_peace=True)
    assert lab.state(job_id) is JobState.QUEUED


def test_resumes_after_last_finished_step_when_its_pool_was_closed(lab):
    job_id = lab.start(steps=4, checkpoint_every=100)
    lab.play_step(job_id)
    lab.until(job_id, lambda: lab.service.job(job_id).step == 1)
    lab.replace_pool(in_peace=True)
    assert [checkpoint.step for checkpoint in lab.events(job_id, "checkpoint")] == [1]
    lab.pool.start_job(job_id)
    lab.play_on(job_id)
    assert "resumed after step 1" in [state.reason for state in lab.events(job_id, "state")]
    assert [step.step for step in lab.events(job_id, "step")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("refusal", "reason", "error_type"),
    [
        (RankLostError("rank 1 ended with code -9"), "a rank of the learner was lost", "RankLostError"),
        pytest.param(
            OSError(28, "no space left"),
            "its worker could not take it up",
            "InternalServiceError",
            marks=MORE,
        ),
        pytest.param(
            UnknownModelError("nano is gone"),
            "its worker could not take it up",
            "UnknownModelError",
            marks=MORE,
        ),
    ],
)
def test_fails_job_in_third_attempt_when_no_learner_starts(lab, monkeypatch, refusal, reason, error_type):
    def refuse(_):
        raise refusal

    monkeypatch.setattr(PoolLearner, "current", refuse)
    job_id = lab.start_later()

    def ended():
        if lab.state(job_id) is JobState.QUEUED:
            lab.pool.start_job(job_id)
        return lab.state(job_id).final

    lab.until(job_id, ended)
    states = lab.events(job_id, "state")
    again = [event.reason for event in states if event.state is JobState.QUEUED][1:]
    assert again == [f"{reason}; resumes from the last checkpoint"] * 2
    assert (states[-1].state, states[-1].attempt) == (JobState.FAILED, 3)
    assert states[-1].error.type == error_type


@pytest.mark.parametrize(
    "broken", [pytest.param((LockstepGate, "__init__"), marks=MORE), (threading.Thread, "start")]
)
def test_offers_next_attempt_a_job_that_could_not_begin(lab, monkeypatch, broken):
    job_id = lab.start_later(deterministic=True)

    def refuse(*_, **__):
        raise RuntimeError("can't start new thread")

    ended = []
    with monkeypatch.context() as patch:
        patch.setattr(*broken, refuse)
        patch.setattr(pool_jobs, "end_if_exhausted", lambda error: ended.append(lab.state(job_id)))
        lab.pool.start_job(job_id)
        lab.until(job_id, lambda: ended)
    # Whether the process ends by this or not, the job is back.
    assert ended == [JobState.QUEUED]
    assert lab.service.job(job_id).reason.startswith("its worker could not take it up")

    def runs():
        lab.pool.start_job(job_id)  # as the scheduler does at each look
        return lab.state(job_id) is JobState.RUNNING

    lab.until(job_id, runs)


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, pytest.param({"top_k": 3}, marks=MORE)])
def test_draws_trained_episode_from_the_whole_distribution(lab, cut):
    job_id = lab.start()
    (episode, *_) = lab.lease(job_id)
    common = {"policy": job_id, "prompt_ids": [5, 6], "max_tokens": 1, **cut}
    found = {}
    requests = [
        SampleRequest(request_id="trained", session_id=f"{lab.tenant_id}/{episode.lease_id}", **common),
        SampleRequest(request_id="other", session_id=f"{lab.tenant_id}/act", **common),
    ]
    lab.pool.routes.sample(
        requests, lambda batch: found.update({answer.request_id: answer for answer in batch})
    )
    lab.until(job_id, lambda: len(found) == 2)
    (name,) = cut
    assert (found["trained"].error.type, found["trained"].error.field) == ("InvalidRequestError", name)
    assert len(found["other"].token_ids) == 1


def test_gives_no_structured_answers_to_trained_episode(lab):
    job_id = lab.start()
    (episode, *_) = lab.lease(job_id)
    common = {"policy": job_id, "prompt_ids": [5, 6], "max_tokens": 1, "structured": Regex(pattern="a")}
    found = []
    requests = [
        SampleRequest(request_id="trained", session_id=f"{lab.tenant_id}/{episode.lease_id}", **common),
        SampleRequest(request_id="other", session_id=f"{lab.tenant_id}/act", **common),
    ]
    lab.pool.routes.sample(requests, found.extend)
    lab.until(job_id, lambda: len(found) == 2)
    messages = {answer.request_id: answer.error.message for answer in found}
    assert "training episode cannot have structured" in messages["trained"]
    assert "engine=transformers does not support" in messages["other"]


def test_samples_together_for_tenant_of_the_deterministic_job(lab, monkeypatch):
    sessions, submit = [], TransformersEngine.submit_together

    def noted(engine, requests, deliver):
        sessions.extend(request.session_id for request in requests)
        submit(engine, requests, deliver)

    monkeypatch.setattr(TransformersEngine, "submit_together", noted)
    job_id = lab.start(steps=1, deterministic=True)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    assert {SeatRef.parse(one).owner for one in sessions} == {lab.tenant_id}


def test_refuses_only_the_prompt_with_too_many_images(lab):
    images = [{"sha256": "0" * 64, "start": place, "end": place + 1} for place in range(65)]
    crowded = SampleRequest(
        request_id="crowded", policy="nano", prompt_ids=[1] * 70, max_tokens=1, images=images
    )
    other = crowded.model_copy(update={"request_id": "other", "images": []})
    inbox = SimpleQueue()
    lab.pool.routes.sample([crowded, other], inbox.put)
    found = {answer.request_id: answer for _ in range(2) for answer in inbox.get(timeout=120)}
    assert isinstance(found["other"], Completion)
    answer = found["crowded"]
    assert (answer.error.type, answer.error.field) == ("InvalidRequestError", "images")


def test_evicts_images_of_earlier_jobs_for_those_of_new_ones(make_lab):
    lab = make_lab(limits=GatewayLimits(stored_images=1))
    player = Player(lab.start(), "worker")
    first, second = picture(1), picture(2)
    lab.pool.routes.add_image(first.sha256, first.data, player)
    with pytest.raises(PayloadTooLargeError):
        lab.pool.routes.add_image(second.sha256, second.data, player)
    lab.tenant.images.add([ImageRow(sha256=first.sha256, bytes=len(first.data), used_at=0.0)])
    lab.pool.routes.add_image(second.sha256, second.data, player)
    wanted = ImageNames(images=[first.sha256, second.sha256])
    assert lab.pool.routes.missing_images(wanted, player).images == [first.sha256]


def test_lacks_renderer_of_another_model(lab):
    with pytest.raises(NotFoundError, check=lambda error: error.field == "model"):
        lab.transport("").renderer("gpt")


def test_proves_by_one_token_that_it_can_be_sampled(lab):
    sampled = []
    submit = lab.pool.own.engine.submit

    def watched(requests, deliver):
        sampled.extend(requests)
        submit(requests, deliver)

    def proven():
        return PoolProof.model_validate_json(lab.connection.call("POST", "/prove")).sampled

    lab.pool.own.engine.submit = watched
    try:
        assert proven()
        assert proven()
        assert lab.pool.own.engine.sleep()
        assert not proven()
        assert lab.pool.own.engine.asleep
        lab.pool.own.engine.wake()
        assert proven()
    finally:
        del lab.pool.own.engine.submit
    assert [request.max_tokens for request in sampled] == [1]
