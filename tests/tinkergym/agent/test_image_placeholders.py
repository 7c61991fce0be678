import numpy as np
import pytest

from backend.catalog.models import load_renderer_bundle
from tests.backend.vlm import NANO_VL, PIXELS, renderer
from tests.tinkergym.agent.talks import answer
from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.image_placeholders import MARK, count_by_size, expanded, image_spans
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.errors import InvalidRequestError, TemplateError
from tinkergym.images.stored_images import image_file
from tinkergym.messages import assistant, observation_messages, system
from tinkergym.schema.views import ImageSizing
from tinkergym.tasks import SequenceTasks
from tinkergym.testing import byte_bundle
from tinkergym.trajectory.trajectory import StopReason

OTHER = 255 - PIXELS


@pytest.fixture(scope="module")
def processor():
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(NANO_VL)


def processed(processor, conversation, images):
    """What the model's own processor makes of a conversation in its own form."""
    from PIL import Image

    text = processor.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    return processor(text=[text], images=[[Image.fromarray(image) for image in images]])["input_ids"][0]


def part(text=None):
    return {"type": "image"} if text is None else {"type": "text", "text": text}


def test_has_ids_of_the_models_processor_for_prompts_every_turn(processor):
    mine = renderer()
    loop = AgentLoop(mine, EpisodePlan(episode_id="e", seed=0, policy="p"))
    request = loop.begin({"image": PIXELS, "text": "Find the area."}, environment_prompt="Look.")
    conversation = [
        {"role": "system", "content": "Look."},
        {"role": "user", "content": [part(), part("Find the area.")]},
    ]
    shown = [PIXELS]
    shows = [{"images": [OTHER, PIXELS], "text": "And these?"}, {"text": "No image."}, OTHER]
    for number, observation in enumerate([*shows, "over"]):
        assert request.prompt_ids == processed(processor, conversation, shown)
        assert [image.end - image.start for image in request.images] == [mine.images.tokens] * len(shown)
        for image in request.images:
            assert set(request.prompt_ids[image.start : image.end]) == {mine.images.placeholder}
        action = loop.receive(answer(mine, request, f"a{number}"))
        request = loop.stepped(observation, 0.0, isinstance(observation, str), False, {})
        reply = {
            0: [part(), part(), part("And these?")],
            1: "No image.",
            2: [part()],
        }.get(number)
        conversation += [{"role": "assistant", "content": action}, {"role": "user", "content": reply}]
        shown += {0: [OTHER, PIXELS], 2: [OTHER]}.get(number, [])
    (segment,) = loop.trajectory().segments
    first, second, third, fourth = (image.sha256 for image in segment.images)
    assert (first, second) == (third, fourth)


def test_reads_no_image_in_text_that_looks_like_one():
    mine = renderer()
    messages = [system("<image>"), *observation_messages({"image": PIXELS, "text": "<image> <global-img>"})]
    ids = mine.start(messages)
    assert ids.count(mine.images.placeholder) == mine.images.tokens
    assert len(mine.spans(ids, messages)) == 1
    assert "<image> <global-img>" in mine.decode(ids)


@pytest.mark.parametrize(
    "observation", [{"image": PIXELS, "text": MARK}, f"a{MARK}b"], ids=["beside an image", "alone"]
)
def test_never_writes_the_mark_of_an_image(observation):
    with pytest.raises(ValueError):
        renderer().start(observation_messages(observation))


def test_lets_an_image_follow_a_message_with_a_name():
    mine = renderer()
    image = observation_messages({"image": PIXELS})
    messages = [{"role": "user", "name": "screen", "content": "Look."}, *image]
    ids = mine.start(messages)
    assert ids.count(mine.images.placeholder) == mine.images.tokens
    assert len(mine.spans(ids, messages)) == 1


def test_reports_template_that_shows_no_images():
    rules = renderer().images
    with pytest.raises(TemplateError):
        expanded([1, 2, 3], rules, [rules.tokens])
    blind = Renderer.from_bundle(byte_bundle().model_copy(update={"images": rules}))
    with pytest.raises(TemplateError):
        blind.start([*observation_messages({"image": PIXELS, "text": "x"}), assistant("y")])


def by_size():
    """The renderer of nano-vl with the rule of the Qwen-VL family: an image's tokens depend on its size."""
    bundle = load_renderer_bundle("nano-vl", NANO_VL)
    sizing = ImageSizing(factor=16, least_pixels=256, most_pixels=65_536)
    rules = bundle.images.model_copy(update={"tokens": 0, "by_size": sizing})
    return Renderer.from_bundle(bundle.model_copy(update={"images": rules}))


def test_hashes_own_images_of_each_turn():
    mine, size = by_size(), (48, 32)
    shown = [np.random.default_rng(number).integers(0, 255, (*size, 3), np.uint8) for number in range(5)]
    loop = AgentLoop(mine, EpisodePlan(episode_id="e", seed=0, policy="p"))
    request = loop.begin({"image": shown[0], "text": "Look."})
    for observation in ({"images": shown[1:3], "text": "And?"}, {"image": shown[3]}, {"image": shown[4]}):
        loop.receive(answer(mine, request, "a"))
        request = loop.stepped(observation, 0.0, False, False, {})
    hashes = [image_file(pixels).sha256 for pixels in shown]
    assert [image.sha256 for image in request.images] == hashes
    loop.receive(answer(mine, request, "a"))
    loop.stepped("", 0.0, True, False, {})
    (segment,) = loop.trajectory().segments
    assert [image.sha256 for image in segment.images] == hashes
    assert [image.start for image in segment.images] == [image.start for image in request.images]


SIDES = (1, 7, 8, 15, 16, 17, 24, 25, 40, 63, 64, 100, 130, 250, 257, 511, 640, 1023, 5000)


@pytest.mark.parametrize(
    ("factor", "least", "most"), [(16, 256, 65_536), (28, 3136, 100_352), (8, 4096, 20_000)]
)
def test_gives_image_as_many_tokens_as_the_processor_does(factor, least, most):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    sizing = ImageSizing(factor=factor, least_pixels=least, most_pixels=most)
    sizes = [(h, w) for h in SIDES for w in SIDES if max(h, w) <= 200 * min(h, w)]
    wrong = []
    for height, width in sizes:
        rows, columns = smart_resize(height, width, factor, least, most)
        expected = rows // factor * (columns // factor)
        if count_by_size(sizing, height=height, width=width) != expected:
            wrong.append((height, width, expected))
    assert wrong == []


def test_expands_placeholders_in_order_between_their_markers():
    rules = renderer().images.model_copy(update={"placeholder": 9, "before": [1, 2], "after": [3]})
    ids = expanded([5, 9, 6, 9], rules, [2, 3])
    assert ids == [5, 1, 2, 9, 9, 3, 6, 1, 2, 9, 9, 9, 3]
    spans = image_spans(ids, rules, ["a" * 64, "b" * 64], [2, 3])
    assert [(one.sha256[0], one.start, one.end) for one in spans] == [("a", 3, 5), ("b", 9, 12)]
    tail = image_spans(ids[6:], rules, ["a" * 64, "b" * 64], [2, 3])
    assert [(one.sha256[0], one.start, one.end) for one in tail] == [("b", 3, 6)]
    for wrong in ([2], [2, 3, 4]):
        with pytest.raises(TemplateError):
            expanded([5, 9, 6, 9], rules, wrong)


def test_blames_environment_for_image_too_narrow_for_the_model():
    mine = by_size()
    narrow = np.random.default_rng(0).integers(0, 255, (1, 250, 3), np.uint8)
    loop = AgentLoop(mine, EpisodePlan(episode_id="e", seed=0, policy="p"))
    request = loop.begin({"image": PIXELS, "text": "Look."})
    loop.receive(answer(mine, request, "a"))
    assert loop.stepped({"image": narrow, "text": "And this?"}, 0.0, False, False, {}) is None
    assert loop.trajectory().stop_reason is StopReason.ENVIRONMENT_ERROR
    rows = [
        {"prompt": [{"role": "user", "content": [{"type": "image", "image": narrow}]}], "completion": "a"}
    ]
    with pytest.raises(InvalidRequestError) as caught:
        prepare(SequenceTasks(rows), mine, kind="sft")
    assert caught.value.field == "data"
