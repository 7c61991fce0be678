"""Models of the Qwen-VL family in learner and transformers engine, against transformers' own run."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from backend.catalog.models import load_renderer_bundle
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from backend.vision.shared_caches import SharedImages
from tests.backend.tiny_qwen_vl import make_qwen_vl
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidImageError, InvalidRequestError
from tinkergym.images.stored_images import image_file
from tinkergym.messages import observation_messages
from tinkergym.schema.jobs.parts import FullParameters, LoRA
from tinkergym.schema.sampling import SampleRequest

SIZES = [(64, 64), (40, 64), (100, 30), (200, 300), (17, 20)]
"""Height and width: as many tokens as each has, and two that are resized."""
PICTURES = [
    image_file(np.random.default_rng(number).integers(0, 255, (*size, 3), np.uint8))
    for number, size in enumerate(SIZES)
]


OLDER = pytest.mark.full("`test_qwen_vl` runs the newest of these three families always")


class Files:
    def read(self, sha256):
        return next(one.data for one in PICTURES if one.sha256 == sha256)


@pytest.fixture(
    scope="module",
    params=["qwen3_vl", *(pytest.param(name, marks=OLDER) for name in ("qwen2_5_vl", "qwen2_vl"))],
)
def folder(request, tmp_path_factory):
    return make_qwen_vl(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def look(folder):
    renderer = Renderer.from_bundle(load_renderer_bundle("tiny", folder))

    def request(name, *numbers, **settings):
        messages = observation_messages({"images": [PICTURES[n] for n in numbers], "text": "Say more."})
        ids = renderer.start(messages)
        return SampleRequest(
            request_id=name,
            prompt_ids=ids,
            images=renderer.spans(ids, messages),
            **{"policy": "", "max_tokens": 5, "seed": 1, **settings},
        )

    return request


@pytest.fixture(scope="module")
def reference(folder):
    """Logprobs of sampled tokens as transformers computes them of pixels and prompt."""
    from transformers import AutoImageProcessor, AutoModelForImageTextToText

    processor = AutoImageProcessor.from_pretrained(folder)
    base = AutoModelForImageTextToText.from_pretrained(folder).eval()

    def score(request, token_ids, model=base):
        ids = torch.tensor([[*request.prompt_ids, *token_ids]])
        more = {}
        if request.images:
            files = [io.BytesIO(Files().read(image.sha256)) for image in request.images]
            more = dict(processor([Image.open(file) for file in files], return_tensors="pt"))
            more["mm_token_type_ids"] = (ids == base.config.image_token_id).int()
        base.model.rope_deltas = None
        with torch.no_grad():
            logits = model(input_ids=ids, **more).logits[0]
        table = torch.log_softmax(logits[len(request.prompt_ids) - 1 : -1].float(), -1)
        return table[range(len(token_ids)), list(token_ids)].tolist()

    return score


@pytest.fixture(scope="module")
def images():
    return SharedImages(Files())


@pytest.fixture(scope="module")
def engine(folder, images):
    engine = TransformersEngine(folder, images=images)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def learner(folder, images):
    return Learner(folder, images=images)


SHOWN = {"one": [0], "wide": [1], "high": [2], "several": [3, 0, 4], "again": [0, 3], "none": []}


def test_samples_in_engine_and_scores_in_learner_as_transformers(engine, learner, look, reference):
    requests = [look(name, *numbers) for name, numbers in SHOWN.items()]
    answers = engine.generate_together(requests)
    assert not [answer.error for answer in answers if hasattr(answer, "error")]
    learner.create_policy("p", LoRA(rank=4), seed=0)
    batch = [TrainSequence.sampled(*pair) for pair in zip(requests, answers, strict=True)]
    for request, answer, found in zip(requests, answers, learner.logprobs("p", batch), strict=True):
        expected = reference(request, answer.token_ids)
        assert answer.sampling_logprobs == pytest.approx(expected, abs=1e-4), request.request_id
        assert found.tolist() == pytest.approx(expected, abs=1e-4), request.request_id
    learner.drop("p")


@pytest.mark.parametrize("adapter", [LoRA(rank=4), LoRA(rank=4, vision=True), FullParameters()])
def test_sends_updates_to_engine_and_loads_checkpoint_in_plain_libraries(
    engine, learner, look, reference, tmp_path, folder, adapter
):
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    learner.create_policy("p", adapter, seed=0)
    engine.publish("p", 0, learner.weights("p"))
    for step in range(4):
        requests = [look(name, *numbers, policy="p", seed=step) for name, numbers in SHOWN.items()]
        answers = engine.generate_together(requests)
        batch = [
            TrainSequence.sampled(*pair, advantage=(-1.0) ** n)
            for n, pair in enumerate(zip(requests, answers, strict=True))
        ]
        learned = learner.forward_backward("p", batch, policy_loss(loss="reinforce")).learner_logprobs
        sampled = np.concatenate([answer.sampling_logprobs for answer in answers])
        assert np.abs(np.concatenate(learned) - sampled).mean() <= 1e-5
        learner.optim_step("p", learning_rate=2e-3)
        engine.publish("p", step + 1, learner.weights("p"))
    learner.save("p", tmp_path / "c", step=4, policy_version=4)
    if isinstance(adapter, FullParameters):
        plain = AutoModelForImageTextToText.from_pretrained(tmp_path / "c").eval()
    else:
        base = AutoModelForImageTextToText.from_pretrained(folder)
        plain = PeftModel.from_pretrained(base, tmp_path / "c").eval()
    for request, answer, found in zip(requests, answers, learner.logprobs("p", batch), strict=True):
        expected = reference(request, answer.token_ids, plain)
        assert found.tolist() == pytest.approx(expected, abs=1e-4), request.request_id
    engine.retire("p")
    learner.drop("p")


def test_continues_conversation_from_cache_with_positions_behind_its_images(engine, look, reference):
    from backend.engines.asking import Asked

    first = look("t0", 1, 0, session_id="s")
    answer = Asked(engine, [first]).wait(60)["t0"]
    reused = engine.stats().reused_tokens
    longer = [*first.prompt_ids, *answer.token_ids, 5, 6, 7]
    second = first.model_copy(update={"request_id": "t1", "prompt_ids": longer})
    found = Asked(engine, [second]).wait(60)["t1"]
    assert engine.stats().reused_tokens - reused >= len(first.prompt_ids)
    expected = reference(second, found.token_ids)
    assert found.sampling_logprobs == pytest.approx(expected, abs=1e-4)


def test_rejects_image_of_another_size_in_place_of_one(learner, look):
    request = look("r", 0)
    (image,) = request.images
    other = image.model_copy(update={"sha256": PICTURES[2].sha256})
    learner.create_policy("p", LoRA(rank=4), seed=0)
    one = TrainSequence(
        token_ids=[*request.prompt_ids, 40, 41],
        loss_mask=[False] * len(request.prompt_ids) + [True] * 2,
        sampling_logprobs=[None] * len(request.prompt_ids) + [-1.0] * 2,
        images=[other],
    )
    with pytest.raises(InvalidRequestError) as caught:
        learner.logprobs("p", [one])
    assert caught.value.field == "images"
    learner.drop("p")


def test_rejects_too_narrow_image_where_it_is_shown(folder):
    renderer = Renderer.from_bundle(load_renderer_bundle("tiny", folder))
    narrow = observation_messages({"image": np.zeros((2, 500, 3), np.uint8)})
    with pytest.raises(InvalidImageError):
        renderer.start(narrow)
