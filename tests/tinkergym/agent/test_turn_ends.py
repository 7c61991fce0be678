import pytest

from tinkergym.agent.templates import ChatTemplate
from tinkergym.agent.turn_ends import find_stop_ids, special_ids, turn_ends

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENING = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"


def test_ends_turn_with_what_follows_every_answer():
    assert turn_ends(ChatTemplate(CHATML, {}), ["<|im_start|>", "<|im_end|>"]) == {"<|im_end|>"}


def test_ends_turn_by_next_opening_where_template_writes_nothing():
    assert "<|user|>" in turn_ends(ChatTemplate(OPENING, {}), ["<|user|>", "<|assistant|>"])


@pytest.mark.parametrize("template", ["{% broken", "{{ raise_exception('no') }}"])
def test_keeps_the_named_ids_when_a_template_cannot_be_used(template):
    assert find_stop_ids(template, {}, {"<|im_end|>": 7}, [3, 2]) == [2, 3]
    assert find_stop_ids(CHATML, {}, {"<|im_end|>": 7}, [2]) == [2, 7]


def test_takes_special_tokens_from_the_tokenizer():
    added = [{"content": "<s>", "id": 1}, {"content": "word", "id": 2, "special": False}]
    assert special_ids({"added_tokens": added}) == {"<s>": 1}
    assert special_ids({}) == {}
