import hashlib
import json
import re
from pathlib import Path

import jinja2
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from backend.catalog.models import load_renderer_bundle
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.round_trip import round_trip
from tinkergym.agent.templates import ChatTemplate
from tinkergym.messages import user
from tinkergym.tool_calls.call import ToolCall

MODELS = Path(__file__).parents[3] / "backend" / "models"
NANO = MODELS / "nano"
TOKENIZER = Tokenizer.from_file(str(NANO / "tokenizer.json"))
TEMPLATE = jinja2.Environment().from_string((NANO / "chat_template.jinja").read_text(encoding="utf-8"))


@pytest.fixture(params=["nano", "nano-instruct"])
def folder(request):
    return MODELS / request.param


def test_loads_model_in_transformers_with_finite_logits(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "47+38="}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.inference_mode():
        logits = model(**ids).logits
    assert logits.shape[-1] == model.config.vocab_size
    assert torch.isfinite(logits).all()


def test_ends_completion_with_the_token_that_configuration_names(folder):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["eos_token_id"] == Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(
        "<|im_end|>"
    )
    assert AutoTokenizer.from_pretrained(folder).eos_token == "<|im_end|>"


def test_keeps_embedding_and_head_untied(folder):
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["tie_word_embeddings"] is False


def test_keeps_weights_small_enough_to_ship(folder):
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 8_000_000


def test_names_the_hash_of_every_file_beside_the_card(folder):
    card = (folder / "README.md").read_text(encoding="utf-8")
    hashes = dict(re.findall(r"\| `([^`]+)` \| `([0-9a-f]{64})` \|", card))
    files = {path.name for path in folder.iterdir()} - {"README.md"}
    assert set(hashes) == files
    for name, digest in hashes.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_encodes_and_decodes_any_text_losslessly(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("cell", [f"{column}{row}" for column in "abcdefghi" for row in range(1, 10)])
def test_reads_a_cell_as_one_token_at_start_or_space(cell):
    assert len(TOKENIZER.encode(cell).ids) == 1
    assert len(TOKENIZER.encode(f"\n{cell} {cell}\n").ids) == 4


def test_gives_every_digit_a_token_of_its_own():
    assert [TOKENIZER.decode([i]) for i in TOKENIZER.encode("47+380=").ids] == [*"47+380="]


def test_only_adds_to_earlier_template_text_by_new_message():
    turns = [
        {"role": "system", "content": "Play."},
        {"role": "user", "content": "You are X.\na1 b1\na2 b2"},
        {"role": "assistant", "content": "b2"},
        {"role": "user", "content": "a1 O\na2 X"},
        {"role": "assistant", "content": ""},
    ]
    before = ""
    for count in range(1, len(turns) + 1):
        text = TEMPLATE.render(messages=turns[:count], add_generation_prompt=False)
        assert text.startswith(before)
        asked = TEMPLATE.render(messages=turns[:count], add_generation_prompt=True)
        assert asked == text + "<|im_start|>assistant\n"
        before = text
    # An answer grows out of the generation prompt that it was sampled after.
    asked = TEMPLATE.render(messages=turns[:2], add_generation_prompt=True)
    answered = TEMPLATE.render(messages=turns[:3], add_generation_prompt=False)
    assert answered == f"{asked}b2<|im_end|>\n"


def test_follows_short_instructions_as_nano_instruct():
    model = AutoModelForCausalLM.from_pretrained(MODELS / "nano-instruct")
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "nano-instruct")

    def answer(instruction):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": instruction}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        made = model.generate(**ids, max_new_tokens=16, do_sample=False)[0, ids["input_ids"].shape[1] :]
        return tokenizer.decode(made, skip_special_tokens=True)

    assert answer("Choose one: red, blue or green.") in {"red", "blue", "green"}
    assert answer("What is the opposite of hot?") == "cold"
    assert "cat" in answer("Write a sentence about a cat.")


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text()}
    ),
    min_size=1,
    max_size=6,
)


@given(messages=MESSAGES, opened=st.booleans())
def test_writes_same_text_without_tools_in_both_templates(messages, opened):
    texts = [
        ChatTemplate((MODELS / name / "chat_template.jinja").read_text(encoding="utf-8"), {}).render(
            messages, add_generation_prompt=opened
        )
        for name in ("nano", "nano-instruct")
    ]
    assert texts[0] == texts[1]


def test_shows_tools_and_reads_its_own_calls():
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    renderer = Renderer.from_bundle(load_renderer_bundle("nano-instruct", MODELS / "nano-instruct"))
    shown = renderer.with_tools([tool])
    assert '"name": "add"' in shown.decode(shown.start([user("2+2?")]))
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    written = shown.answer_text(
        [user("2+2?")], {"role": "assistant", "content": "", "tool_calls": [call] * 2}
    )
    assert shown.call_grammar.read(written).calls == (ToolCall("add", {"a": 2}),) * 2
    assert round_trip(load_renderer_bundle("nano-instruct", MODELS / "nano-instruct")).exact
