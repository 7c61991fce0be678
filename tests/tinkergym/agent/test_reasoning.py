import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.tinkergym.agent.talks import ANSWERS, WORDS, talk
from tinkergym.agent.reasoning import without_reasoning
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.templates import ChatTemplate
from tinkergym.messages import system, user
from tinkergym.testing import FAMILIES, family_bundle, ledger_violations

BUNDLES = {name: family_bundle(name) for name in FAMILIES}


RENDERERS = {name: Renderer.from_bundle(bundle) for name, bundle in BUNDLES.items()}


family = pytest.mark.parametrize("name", list(FAMILIES))


TALKS = st.lists(st.tuples(WORDS, ANSWERS), min_size=2, max_size=4)


def rendered(bundle, messages):
    """Return the ids that `apply_chat_template` gives, by jinja2 and tokenizers alone."""
    template = ChatTemplate(bundle.chat_template, bundle.special_tokens)
    text = template.render(messages, add_generation_prompt=True)
    return Tokenizer.from_str(bundle.tokenizer_json).encode(text, add_special_tokens=False).ids


@family
@given(turns=TALKS)
@settings(max_examples=25, deadline=None)
def test_shows_dropped_reasoning_only_where_it_was_sampled(name, turns):
    renderer = RENDERERS[name]
    trajectory, requests, completions, _ = talk(renderer, turns, prompt="Be brief.", reasoning="drop")
    assert ledger_violations(trajectory, completions, requests) == []
    assert all("think>" not in renderer.decode(request.prompt_ids) for request in requests)
    assert [turn.action for turn in trajectory.turns] == [text for _, text in turns]
    if not renderer.rewrites_history([system("s")]):
        edits = sum("think>" in text for _, text in turns[:-1])
        assert len(trajectory.segments) == 1 + edits


@given(turns=TALKS)
@settings(max_examples=25, deadline=None)
def test_gives_equal_prompts_whether_template_or_loop_drops_reasoning(turns):
    _, requests, _, conversations = talk(RENDERERS["qwen"], turns, reasoning="drop")
    for request, messages in zip(requests, conversations, strict=True):
        assert request.prompt_ids == rendered(BUNDLES["qwen"], messages)


def test_keeps_reasoning_in_one_segment_though_template_would_drop_it():
    turns = [("one", "<think>\nhm\n</think>\n\na"), ("two", "b"), ("three", "c")]
    trajectory, requests, _, _ = talk(RENDERERS["qwen"], turns)
    assert len(trajectory.segments) == 1
    assert "<think>\nhm\n</think>\n\na<|im_end|>" in RENDERERS["qwen"].decode(requests[-1].prompt_ids)


def test_drops_reasoning_cut_by_a_limit_to_its_end():
    trajectory, requests, _, _ = talk(
        RENDERERS["llama"], [("one", "<think>\nand so on"), ("two", "b")], reasoning="drop"
    )
    assert len(trajectory.segments) == 2
    assert "and so on" not in RENDERERS["llama"].decode(requests[1].prompt_ids)


def test_lets_answer_close_the_reasoning_that_its_prompt_opens():
    template = FAMILIES["llama"].template.replace(
        "assistant<|end_header_id|>\\n\\n", "assistant<|end_header_id|>\\n\\n<think>\\n"
    )
    bundle = BUNDLES["llama"].model_copy(update={"chat_template": template})
    renderer = Renderer.from_bundle(bundle)
    assert renderer.opens_reasoning
    assert not renderer.rewrites_history([user("u")])
    turns = [("one", "hm\n</think>\n\na"), ("two", "cut off"), ("three", "c")]
    _, requests, _, _ = talk(renderer, turns, reasoning="drop")
    text = renderer.decode(requests[-1].prompt_ids)
    assert "hm" not in text
    assert "cut off" not in text
    assert "\n\na<|eot_id|>" in text


@pytest.mark.parametrize("opened", [False, True])
def test_keeps_call_that_quotes_tags(opened):
    call = '<tool_call>\n{"name": "save", "arguments": {"text": "<think>a</think> b"}}\n</tool_call>'
    thought = "hm\n</think>\n\n" if opened else "<think>\nhm\n</think>\n\n"
    assert without_reasoning(thought + call, opened=opened) == call
    assert without_reasoning(call) == call
