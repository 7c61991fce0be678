"""Base models trained without their beginning token; templates and tokenizers that both add it.

https://github.com/unslothai/unsloth/issues/571, https://github.com/huggingface/trl/issues/1400,
https://github.com/OpenRLHF/OpenRLHF/issues/393, https://github.com/sgl-project/sglang/issues/888
"""

import json

import pytest

from benchmarks.template_families import families, template_bundle
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.marked_tokens import conversation_tokens
from tinkergym.messages import assistant, user
from tinkergym.schema.chat_templates import PLAIN
from tinkergym.testing import family_bundle

INSTRUCT = {name: text for templates in families().values() for name, text in templates.items()}
TALK = [user("Hi"), assistant("Hello."), user("Bye"), assistant("Bye.")]


def base(family, **changes):
    return family_bundle(family).model_copy(update={"chat_template": PLAIN, **changes})


def begun(bundle):
    """Return how often a prompt, a document and a whole conversation contain the beginning token."""
    renderer = Renderer.from_bundle(bundle)
    texts = [
        renderer.start(TALK[:1]),
        renderer.document("Hi"),
        conversation_tokens(renderer, TALK).token_ids,
    ]
    bos = bundle.special_tokens["bos_token"]
    return [(ids.count(token), ids[0] == token) for ids in texts for token in [renderer_id(renderer, bos)]]


def renderer_id(renderer, token):
    (index,) = renderer._encode_text(token) or [-1]
    return index


@pytest.mark.parametrize("family", ["llama", "gemma", "mistral"])
def test_begins_prompts_and_documents_as_tokenizer_does(family):
    assert begun(base(family)) == [(1, True)] * 3


@pytest.mark.parametrize("family", ["llama", "gemma", "mistral"])
def test_writes_no_token_that_is_only_named(family):
    # As GPT-2 and Pythia, which name a token that their tokenizers never add.
    tokenizer = json.loads(family_bundle(family).tokenizer_json)
    named = json.dumps({**tokenizer, "post_processor": None})
    assert begun(base(family, tokenizer_json=named)) == [(0, False)] * 3
    assert begun(base(family, tokenizer_json=named, add_bos_token=True)) == [(1, True)] * 3
    assert begun(base(family, add_bos_token=False)) == [(0, False)] * 3


@pytest.mark.parametrize("family", ["llama", "gemma", "mistral"])
def test_writes_token_once_where_template_and_tokenizer_add_it(family):
    assert begun(family_bundle(family)) == [(1, True)] * 3


@pytest.mark.parametrize("name", list(INSTRUCT))
def test_leaves_the_beginning_to_an_instruct_models_template(name):
    bundle = template_bundle(name, INSTRUCT[name])
    renderer = Renderer.from_bundle(bundle)
    prompt = renderer.decode(renderer.start(TALK[:1]))
    assert prompt.count("<bos>") == int("bos_token" in INSTRUCT[name])
