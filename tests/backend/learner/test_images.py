"""The learner with a model that sees: learning, checkpoints and what plain libraries load of them."""

import io

import pytest
import torch
from PIL import Image

from backend.learner.image_numbers import ImageNumbers
from backend.learner.learner import Learner
from backend.learner.merging import merge_adapter
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from tests.backend.vlm import NANO_VL, Pictures, look, picture
from tinkergym.errors import InvalidRequestError, UnsupportedPartError
from tinkergym.schema.jobs.parts import FullParameters, LoRA

ANSWER = [20, 21, 2]
KINDS = [LoRA(rank=4), LoRA(rank=4, vision=True), FullParameters()]


@pytest.fixture
def learner():
    return Learner(NANO_VL, images=Pictures(), cpu_threads=1)


def sequence(*numbers, advantage=1.0, answer=ANSWER):
    request = look("r", *numbers)
    prompt = len(request.prompt_ids)
    return TrainSequence(
        token_ids=[*request.prompt_ids, *answer],
        loss_mask=[False] * prompt + [True] * len(answer),
        sampling_logprobs=[None] * prompt + [-1.0] * len(answer),
        advantage=advantage,
        images=request.images,
    )


def expected(model, one):
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(NANO_VL)
    numbers = {picture(number).sha256: number for number in range(100)}
    shown = [Image.open(io.BytesIO(picture(numbers[i.sha256]).data)) for i in one.images]
    pixels = processor.image_processor([shown], return_tensors="pt")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([one.token_ids]), **pixels).logits[0]
    table = torch.log_softmax(logits.float(), -1)
    return [float(table[p - 1, one.token_ids[p]]) for p in range(len(one.token_ids)) if one.loss_mask[p]]


@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param(KINDS[0], id="words", marks=pytest.mark.full("part of what `eyes` adapts")),
        pytest.param(KINDS[1], id="eyes"),
        pytest.param(KINDS[2], id="whole", marks=pytest.mark.full("saved as a model of words is")),
    ],
)
def test_answers_in_plain_libraries_as_learned_and_saved(learner, tmp_path, adapter):
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    learner.create_policy("p", adapter, seed=0)
    batch = [sequence(1), sequence(1, answer=[30, 2], advantage=-1.0), sequence(2), sequence(1, 2)]
    for _ in range(4):
        learner.forward_backward("p", batch, policy_loss(loss="reinforce"))
        learner.optim_step("p", learning_rate=1e-2)
    learned = learner.logprobs("p", batch)
    learner.save("p", tmp_path / "c", step=4, policy_version=4)
    if isinstance(adapter, FullParameters):
        plain = AutoModelForImageTextToText.from_pretrained(tmp_path / "c").eval()
    else:
        base = AutoModelForImageTextToText.from_pretrained(NANO_VL)
        plain = PeftModel.from_pretrained(base, tmp_path / "c").eval()
    for one, found in zip(batch, learned, strict=True):
        assert found.tolist() == pytest.approx(expected(plain, one), abs=1e-4)
    seen = {name for name in learner.weights("p").tensors if "vision" in name or "connector" in name}
    assert bool(seen) == (adapter != KINDS[0])
    if isinstance(adapter, LoRA):
        merge_adapter(tmp_path / "c", tmp_path / "m", model="nano-vl")
        merged = AutoModelForImageTextToText.from_pretrained(tmp_path / "m").eval()
        assert learned[0].tolist() == pytest.approx(expected(merged, batch[0]), abs=1e-4)


def test_passes_gradients_to_what_sees_only_where_trained(learner):
    for name, adapter in (("words", KINDS[0]), ("eyes", KINDS[1])):
        learner.create_policy(name, adapter, seed=0)
        learner.forward_backward(name, [sequence(1), sequence(2)], policy_loss())
    # B is 0 at first, so the gradient of A is too.
    eyes = {name: g for name, g in learner.gradient("eyes").items() if "lora_B" in name and "vision" in name}
    assert eyes and all(float(gradient.abs().max()) > 0 for gradient in eyes.values())
    assert not [name for name in learner.gradient("words") if "vision" in name]


def test_tells_apart_prompts_that_differ_in_image_alone(learner):
    learner.create_policy("p", KINDS[0], seed=0)
    alone = [learner.logprobs("p", [one])[0].tolist() for one in (sequence(3), sequence(4))]
    together = [found.tolist() for found in learner.logprobs("p", [sequence(3), sequence(4), sequence(3)])]
    assert together[:2] == [pytest.approx(one, abs=1e-5) for one in alone]
    assert together[2] == together[0]
    assert alone[0] != pytest.approx(alone[1], abs=1e-3)


def test_shows_a_swapped_image_in_the_logprobs(learner):
    learner.create_policy("p", KINDS[0], seed=0)
    right, wrong = sequence(5, 6), sequence(6, 5)
    assert right.token_ids == wrong.token_ids
    found, swapped = learner.logprobs("p", [right, wrong])
    assert abs(found - swapped).mean() > 1e-3


def test_rejects_images_and_their_adapters_without_vision(learner, tmp_path):
    from backend.settings.served_models import PACKAGED_MODELS

    blind = Learner(PACKAGED_MODELS["nano"], images=Pictures())
    with pytest.raises(InvalidRequestError) as caught:
        blind.create_policy("p", KINDS[1], seed=0)
    assert caught.value.field == "adapter.vision"
    blind.create_policy("p", KINDS[0], seed=0)
    with pytest.raises(UnsupportedPartError):
        blind.forward_backward("p", [sequence(1)], policy_loss())


def test_returns_numbers_of_images_as_parts():
    import numpy as np

    numbers = ImageNumbers()
    ids = np.array(sequence(1, 2).token_ids)
    again = ids.copy()
    numbers.put_into(ids, sequence(1, 2).images)
    numbers.put_into(again, sequence(2, 1).images)
    assert (ids != again).any()
    images, nodes, rows = numbers.taken_out_of(again)
    assert {sha256 for sha256, _ in images} == {picture(1).sha256, picture(2).sha256}
    first = 0 if images[0][0] == picture(2).sha256 else images[0][1]
    assert rows[0] == first
    assert len(nodes) == sum(tokens for _, tokens in images)
