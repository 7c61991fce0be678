"""The transformers engine with a model that sees."""

import pytest
import torch
from PIL import Image

from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.learner.learner import Learner
from tests.backend.vlm import NANO_VL, Pictures, look, picture
from tinkergym.schema.jobs.parts import FullParameters, LoRA
from tinkergym.trajectory.content_parts import ImageSpan


@pytest.fixture(scope="module")
def pictures():
    return Pictures()


@pytest.fixture(scope="module")
def engine(pictures):
    engine = TransformersEngine(NANO_VL, images=pictures)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def weights(pictures):
    """Return a policy's weights after a step into a direction of chance."""
    learner = Learner(NANO_VL, images=pictures)

    def make(adapter, seed=0):
        name = f"p{len(learner.policy_ids)}"
        learner.create_policy(name, adapter, seed=seed)
        found = learner.weights(name)
        generator = torch.Generator().manual_seed(seed)
        for tensor in found.tensors.values():
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.03)
        return found

    return make


def logprobs(engine, *requests):
    found = engine.generate_together(requests)
    assert not [one.error for one in found if hasattr(one, "error")]
    return {one.request_id: (one.token_ids, torch.tensor(one.sampling_logprobs)) for one in found}


@pytest.fixture(scope="module")
def reference():
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = AutoProcessor.from_pretrained(NANO_VL)
    model = AutoModelForImageTextToText.from_pretrained(NANO_VL).eval()

    def score(request, token_ids, change=None):
        numbers = {picture(number).sha256: number for number in range(100)}
        shown = [Image.open(_file(numbers[image.sha256])) for image in request.images]
        pixels = processor.image_processor([shown], return_tensors="pt")
        used = model if change is None else change(model)
        with torch.no_grad():
            logits = used(input_ids=torch.tensor([[*request.prompt_ids, *token_ids]]), **pixels).logits[0]
        table = torch.log_softmax(logits[len(request.prompt_ids) - 1 : -1], -1)
        return table[range(len(token_ids)), token_ids]

    return score


def _file(number):
    import io

    return io.BytesIO(picture(number).data)


def test_samples_images_as_transformers_scores_them(engine, reference):
    requests = [look("one", 1), look("two", 1, 2), look("swapped", 2, 1), look("other", 3)]
    for name, (token_ids, found) in logprobs(engine, *requests).items():
        request = next(one for one in requests if one.request_id == name)
        assert torch.allclose(found, reference(request, token_ids), atol=1e-5)


def test_shares_no_cache_between_prompts_with_different_images(engine):
    alone = {name: logprobs(engine, look(name, int(name)))[name] for name in ("4", "5")}
    copied = engine.stats().copied_tokens
    together = logprobs(engine, look("4", 4), look("5", 5), look("again", 4))
    assert all(torch.allclose(together[name][1], alone[name][1], atol=1e-5) for name in alone)
    assert not torch.allclose(alone["4"][1], alone["5"][1][: len(alone["4"][1])], atol=1e-3)
    # Up to the image the two begin alike; the whole prompt is only what shows the same image.
    assert engine.stats().copied_tokens - copied < 2 * len(look("4", 4).prompt_ids)


def test_shares_a_batch_between_adapters_on_either_part_and_base(engine, weights, reference):
    published = {
        "words": weights(LoRA(rank=4), 1),
        "eyes": weights(LoRA(rank=4, vision=True), 2),
        "more": weights(LoRA(rank=4, vision=True), 3),
        "whole": weights(FullParameters(), 4),
    }
    for name, own in published.items():
        engine.publish(name, 1, own)
    requests = [look(name or "base", 6, policy=name) for name in ("", *published)]
    alone = {r.request_id: logprobs(engine, r)[r.request_id] for r in requests}
    together = logprobs(engine, *requests)
    for name, (token_ids, found) in together.items():
        assert token_ids == alone[name][0]
        assert torch.allclose(found, alone[name][1], atol=1e-5)
    assert len({tuple(found.tolist()) for _, found in together.values()}) == 5
    for name in published:
        engine.retire(name)


def test_shows_new_images_through_an_adapter_that_is_merged(engine, weights, reference):
    for version in (1, 2):
        engine.publish("merged", version, weights(LoRA(rank=4), version))
        engine.publish("eyes", version, weights(LoRA(rank=4, vision=True), version))
        for shown in (20, 30):
            for policy in ("merged", "eyes", "merged"):
                requests = [look(f"{n}", shown + 4 * version + n // 2, policy=policy) for n in range(8)]
                found = logprobs(engine, *requests)
                assert torch.equal(found["0"][1], found["1"][1])
    base = look("base", 44)
    token_ids, found = logprobs(engine, base)["base"]
    assert torch.allclose(found, reference(base, token_ids), atol=1e-5)
    engine.retire("merged")
    engine.retire("eyes")


def test_reads_an_image_once_for_all_who_show_it(engine, pictures):
    before = pictures.reads
    logprobs(engine, *(look(f"r{n}", 7, seed=n) for n in range(8)))
    assert pictures.reads == before + 1


@pytest.mark.parametrize("how", ["unknown", "moved", "short", "removed", "added"])
def test_rejects_images_that_do_not_fit_their_prompt(engine, how):
    request = look("r", 8, 9)
    first, second = request.images
    images = {
        "unknown": [first, second.model_copy(update={"sha256": "ab" * 32})],
        "moved": [first, ImageSpan(sha256=second.sha256, start=second.start + 1, end=second.end + 1)],
        "short": [first, ImageSpan(sha256=second.sha256, start=second.start, end=second.end - 1)],
        "removed": [first],
        "added": [first, second, ImageSpan(sha256=first.sha256, start=second.end + 2, end=second.end + 4)],
    }[how]
    (answer,) = engine.generate_together([request.model_copy(update={"images": images})])
    assert answer.error.field == "images"


def test_continues_conversation_from_its_cache(engine):
    first = look("t0", 10, session_id="s")
    arrived = []
    import threading

    done = threading.Event()

    def deliver(answers):
        arrived.extend(answers)
        done.set()

    engine.submit([first], deliver)
    assert done.wait(60)
    done.clear()
    begin = engine.stats().reused_tokens
    longer = [*first.prompt_ids, *arrived[0].token_ids, 5, 6, 7]
    engine.submit([first.model_copy(update={"request_id": "t1", "prompt_ids": longer})], deliver)
    assert done.wait(60)
    assert engine.stats().reused_tokens - begin >= len(first.prompt_ids)
    (fresh,) = engine.generate_together(
        [first.model_copy(update={"request_id": "t1", "prompt_ids": longer, "session_id": ""})]
    )
    assert arrived[1].sampling_logprobs == pytest.approx(fresh.sampling_logprobs, abs=1e-5)


def test_gives_numbers_as_logprobs_of_prompt_with_images(engine):
    (answer,) = engine.generate_together([look("p", 11, prompt_logprobs=True)])
    assert len(answer.prompt_logprobs) == len(look("p", 11).prompt_ids)
