"""Adapter and optimizer options in a whole job: learner and engine agree, and a resumed job ends alike."""

from __future__ import annotations

import pytest

from tinkergym.schema.chat_templates import PLAIN
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.schema.optimizer import AdamW

FEW = LoRA(rank=4, alpha=6.0, rslora=True, target_modules=["q_proj", "mlp.*"])
OPTIMIZER = AdamW(beta1=0.8, beta2=0.95, eps=1e-6)


def test_agrees_between_learner_and_engine_and_resumes_bit_equal(lab):
    settings = {"adapter": FEW, "optimizer": OPTIMIZER, "deterministic": True, "checkpoint_every": 1}
    ended = []
    for killed in (False, True):
        job_id = lab.start(steps=3, **settings)
        if killed:
            while lab.service.job(job_id).step < 1:
                lab.submit(job_id, lab.play(lab.lease(job_id)))
            lab.replace_pool()
            lab.pool.start_job(job_id)
        lab.play_on(job_id)
        assert lab.state(job_id) is JobState.COMPLETED
        assert all(step.metrics["parity_max"] < 1e-4 for step in lab.events(job_id, "step"))
        ended.append(lab.weights(job_id, 3))
    assert ended[0] == ended[1]


@pytest.mark.parametrize("settings", [{"optimizer": AdamW(beta1=0.5)}, {"adapter": LoRA(rslora=True)}])
def test_applies_each_option(lab, settings):
    assert lab.that_learn_the_same([{}, settings]) == []


def test_fails_job_that_names_no_layer_and_lists_existing_ones(lab):
    job_id = lab.start(steps=1, adapter=LoRA(target_modules=["layers.99.*"]))
    lab.until(job_id, lambda: lab.state(job_id).final)
    error = lab.service.job(job_id).error
    assert error.field == "adapter.target_modules"


def test_renders_episodes_by_the_chat_template_of_their_job(lab):
    job_id = lab.start(steps=1, chat_template="plain")
    assert lab.transport(job_id).renderer(job_id).chat_template == PLAIN
    assert {seat.model for one in lab.lease(job_id) for seat in one.seats.values()} == {job_id}
    lab.replace_pool()
    lab.pool.start_job(job_id)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
