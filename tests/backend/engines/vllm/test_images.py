"""The vLLM engine with the real vLLM and a model that sees, against learner and embedded engine."""

from __future__ import annotations

import numpy as np
import pytest

from backend.config import VllmSettings
from backend.engines.embedded.engine import TransformersEngine
from backend.learner.learner import Learner
from backend.learner.losses import LossConfig
from backend.learner.sequences import TrainSequence
from backend.vision.shared import SharedImages
from tests.backend.vlm import NANO_VL, Pictures, look, picture, renderer
from tinkergym.schema.job_spec import FullParameters, LoRA

pytestmark = [pytest.mark.slow, pytest.mark.service]
pytest.importorskip("vllm", reason="vLLM is not installed: bash scripts/install_vllm.sh")

ADAPTERS = {"words": LoRA(rank=4), "eyes": LoRA(rank=4, vision=True), "whole": FullParameters()}


@pytest.fixture(scope="module")
def images():
    return SharedImages(Pictures())


@pytest.fixture(scope="module")
def learner(images):
    return Learner(NANO_VL, images=images)


@pytest.fixture(scope="module")
def engine(images):
    from backend.engines.vllm.engine import VllmEngine

    engine = VllmEngine(
        NANO_VL, settings=VllmSettings(cache_bytes=1 << 27, max_adapter_rank=8), images=images
    )
    yield engine
    engine.close()


def test_learner_and_vllm_agree_on_images_through_updates_of_every_kind_of_policy(engine, learner):
    for name, adapter in ADAPTERS.items():
        learner.create_policy(name, adapter, seed=0)
        engine.publish(name, 0, learner.weights(name))
    for step in range(5):
        # All policies and the base model in one batch, with the same images and others.
        requests = [
            look(f"{name}/{number}", *shown, policy=name, seed=number)
            for number, shown in enumerate([(1,), (2,), (1, 2), (2, 1), (3 + step,), ()])
            for name in ("", *ADAPTERS)
        ]
        answers = engine.generate_together(requests)
        assert not [answer.error for answer in answers if hasattr(answer, "error")]
        for name in ("", *ADAPTERS):
            own = [
                TrainSequence.sampled(request, answer, advantage=1.0 if number % 2 else -1.0)
                for number, (request, answer) in enumerate(zip(requests, answers, strict=True))
                if request.policy == name
            ]
            sampled = np.concatenate([one.sampling_logprobs[-sum(one.loss_mask) :] for one in own])
            learned = np.concatenate(learner.logprobs(name or None, own))
            assert np.abs(learned - np.asarray(sampled, dtype=np.float32)).mean() <= 1e-5, (name, step)
            if name and step < 4:
                learner.forward_backward(name, own, LossConfig(name="reinforce"))
                learner.optim_step(name, learning_rate=2e-3)
                engine.publish(name, step + 1, learner.weights(name))
    for name in ADAPTERS:
        engine.retire(name)
        learner.drop(name)


def test_what_is_sampled_of_images_is_what_the_embedded_engine_samples(engine, images):
    placeholder = renderer().images.placeholder
    plain = look("stray", 5)
    # A policy may have sampled a placeholder in an earlier turn; it is no image.
    stray = plain.model_copy(update={"prompt_ids": [*plain.prompt_ids, 30, placeholder, 31]})
    requests = [look("one", 4), look("two", 4, 5), stray, look("none"), look("again", 4, seed=7)]
    embedded = TransformersEngine(NANO_VL, images=images)
    try:
        expected = embedded.generate_together(requests)
    finally:
        embedded.close()
    for _ in range(2):  # the second time from what is cached by the images' hashes
        for found, wanted in zip(engine.generate_together(requests), expected, strict=True):
            assert found.token_ids == wanted.token_ids
            assert found.sampling_logprobs == pytest.approx(wanted.sampling_logprobs, abs=1e-4)


@pytest.mark.parametrize("how", ["removed", "moved", "unknown", "too many"])
def test_images_that_do_not_fit_their_prompt_are_refused(engine, how):
    request = look("r", 8, 9)
    first, second = request.images
    images = {
        "removed": [first],
        "moved": [first, second.model_copy(update={"start": second.start + 1, "end": second.end + 1})],
        "unknown": [first, second.model_copy(update={"sha256": "ab" * 32})],
        "too many": [first] * 65,
    }[how]
    assert picture(8).sha256 == first.sha256
    (answer,) = engine.generate_together([request.model_copy(update={"images": images})])
    assert answer.error.field == "images"
