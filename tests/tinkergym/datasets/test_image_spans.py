"""Where the images of a dataset's row are in its tokens: each on its own placeholders, in every turn."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tinkergym.agent.test_image_placeholders import by_size
from tests.tinkergym.datasets.test_prepare import tokens_of, trained_texts
from tinkergym.agent.image_placeholders import count_by_size
from tinkergym.agent.renderer import Renderer
from tinkergym.images.stored_images import image_file
from tinkergym.testing import byte_bundle

SIZES = ((40, 64), (64, 64), (96, 48), (32, 128))
PIXELS = [
    np.random.default_rng(number).integers(0, 255, (*size, 3), np.uint8) for number, size in enumerate(SIZES)
]


@pytest.fixture(scope="module")
def renderer():
    return by_size()


def asked(text, *numbers):
    images = [{"type": "image", "image": PIXELS[number]} for number in numbers]
    return {"role": "user", "content": [*images, {"type": "text", "text": text}]}


def answered(text):
    return {"role": "assistant", "content": text}


TALK = [
    asked("one?", 0, 1),
    answered("two"),
    asked("none?"),
    answered("three"),
    asked("and?", 2),
    answered("four"),
    asked("these?", 1, 3),
    answered("five"),
]


def assert_shows(renderer, sequence, numbers):
    """Compare a sequence's images with pictures: hashes, lengths and places."""
    sizing, placeholder = renderer.images.by_size, renderer.images.placeholder
    files = [image_file(PIXELS[number]) for number in numbers]
    assert [span.sha256 for span in sequence.images] == [file.sha256 for file in files]
    assert [span.end - span.start for span in sequence.images] == [
        count_by_size(sizing, height=SIZES[number][0], width=SIZES[number][1]) for number in numbers
    ]
    shown = [place for span in sequence.images for place in range(span.start, span.end)]
    assert shown == [place for place, token in enumerate(sequence.token_ids) if token == placeholder]


def test_places_images_of_every_turn_on_their_placeholders(renderer):
    ((sequence,),) = tokens_of(renderer, {"messages": TALK})
    assert_shows(renderer, sequence, [0, 1, 2, 1, 3])
    stop = renderer.decode([renderer.stop_ids[0]])
    assert trained_texts(renderer, sequence) == [f"{word}{stop}" for word in ("two", "three", "four", "five")]
    ((last,),) = tokens_of(renderer, {"messages": TALK}, answers="last")
    assert (last.token_ids, last.images) == (sequence.token_ids, sequence.images)
    assert trained_texts(renderer, last) == [f"five{stop}"]


def test_shows_prompts_images_in_both_answers_of_a_comparison(renderer):
    row = {"prompt": TALK[:5], "chosen": "good", "rejected": "a worse one"}
    for sequence, text in zip(
        tokens_of(renderer, row, kind="preference")[0], ("good", "a worse"), strict=True
    ):
        assert_shows(renderer, sequence, [0, 1, 2])
        assert trained_texts(renderer, sequence)[0].startswith(text)


def test_places_images_anew_where_template_rewrites_the_past(renderer):
    rewriting = (
        "{%- for m in messages %}{% if loop.last or m.role == 'user' %}<|im_start|>{{ m.role }}\n"
        "{%- if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
        "{{ '~' if part.type == 'image' else part.text }}{% endfor %}{% endif %}<|im_end|>\n{% endif %}"
        "{%- endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    bundle = byte_bundle(chat_template=rewriting)
    placeholder = bundle_token(bundle, "~")
    rules = renderer.images.model_copy(update={"placeholder": placeholder, "before": [], "after": []})
    rewritten = Renderer.from_bundle(bundle.model_copy(update={"images": rules}))
    ((sequence,),) = tokens_of(rewritten, {"messages": TALK}, answers="last")
    assert_shows(rewritten, sequence, [0, 1, 2, 1, 3])
    assert [rewritten.decode(sequence.token_ids[a:b]) for a, b in sequence.trained] == ["five<|im_end|>"]


def bundle_token(bundle, text):
    from tokenizers import Tokenizer

    return Tokenizer.from_str(bundle.tokenizer_json).token_to_id(text)
