"""The vLLM engine with the real vLLM and a model that sees, against learner and transformers engine."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from backend.settings.served_models import VllmSettings
from backend.vision.shared_caches import SharedImages
from tests.backend.tiny_qwen_vl import make_qwen_vl
from tests.backend.vlm import NANO_VL, Pictures, Seeing
from tinkergym.schema.jobs.parts import FullParameters, LoRA

pytestmark = pytest.mark.service
pytest.importorskip("vllm", reason="vLLM is not installed: bash scripts/install_vllm.sh")

ADAPTERS = {"words": LoRA(rank=4), "eyes": LoRA(rank=4, vision=True), "whole": FullParameters()}
QWEN_SIZES = ((64, 64), (48, 64), (64, 32), (32, 32))
"""Each has another number of tokens. None is resized: here the learner would do it without torchvision, but
vLLM with it, and they round differently."""
TORCHVISION = Path(sys.prefix) / "torchvision"


@pytest.fixture(scope="module", params=["idefics3", "qwen3_vl"])
def seeing(request, tmp_path_factory):
    if request.param == "idefics3":
        yield Seeing(NANO_VL)
        return
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("torchvision") is None:
            if not TORCHVISION.is_dir():
                pytest.skip("torchvision is not there: bash scripts/install_torchvision.sh")
            # Only for vLLM's processes: in this one transformers would use it for every test's images.
            patch.setenv("PYTHONPATH", str(TORCHVISION), prepend=os.pathsep)
        yield Seeing(make_qwen_vl(tmp_path_factory.mktemp("qwen3_vl")), QWEN_SIZES)


@pytest.fixture(scope="module")
def images(seeing):
    return SharedImages(Pictures(of=seeing))


@pytest.fixture(scope="module")
def learner(seeing, images):
    return Learner(seeing.directory, images=images)


@pytest.fixture(scope="module")
def engine(seeing, images):
    from backend.engines.vllm.vllm_engine import VllmEngine

    engine = VllmEngine(
        seeing.directory, settings=VllmSettings(cache_bytes=1 << 27, max_adapter_rank=8), images=images
    )
    yield engine
    engine.close()


def test_agrees_with_learner_on_images_through_updates_of_every_kind(seeing, engine, learner):
    for name, adapter in ADAPTERS.items():
        learner.create_policy(name, adapter, seed=0)
        engine.publish(name, 0, learner.weights(name))
    for step in range(5):
        # All policies and the base model in one batch, with the same images and others.
        requests = [
            seeing.look(f"{name}/{number}", *shown, policy=name, seed=number)
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
                learner.forward_backward(name, own, policy_loss(loss="reinforce"))
                learner.optim_step(name, learning_rate=2e-3)
                engine.publish(name, step + 1, learner.weights(name))
    for name in ADAPTERS:
        engine.retire(name)
        learner.drop(name)


def test_samples_of_images_what_the_transformers_engine_samples(seeing, engine, images):
    placeholder = seeing.renderer.images.placeholder
    plain = seeing.look("stray", 5)
    # A policy may have sampled a placeholder in an earlier turn; it is no image.
    stray = plain.model_copy(update={"prompt_ids": [*plain.prompt_ids, 30, placeholder, 31]})
    requests = [
        seeing.look("one", 4),
        seeing.look("two", 4, 5),
        stray,
        seeing.look("none"),
        seeing.look("again", 4, seed=7),
    ]
    other = TransformersEngine(seeing.directory, images=images)
    try:
        expected = other.generate_together(requests)
    finally:
        other.close()
    for _ in range(2):  # the second time from what is cached by the images' hashes
        for found, wanted in zip(engine.generate_together(requests), expected, strict=True):
            assert found.token_ids == wanted.token_ids
            assert found.sampling_logprobs == pytest.approx(wanted.sampling_logprobs, abs=1e-4)


@pytest.mark.parametrize("how", ["removed", "moved", "unknown", "too many"])
def test_rejects_images_that_do_not_fit_their_prompt(seeing, engine, how):
    request = seeing.look("r", 8, 9)
    first, second = request.images
    images = {
        "removed": [first],
        "moved": [first, second.model_copy(update={"start": second.start + 1, "end": second.end + 1})],
        "unknown": [first, second.model_copy(update={"sha256": "ab" * 32})],
        "too many": [first] * 65,
    }[how]
    assert seeing.picture(8).sha256 == first.sha256
    (answer,) = engine.generate_together([request.model_copy(update={"images": images})])
    assert answer.error.field == "images"
