"""The ledger against what chat templates of four shapes write."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.tinkergym.agent.talks import ANSWERS, WORDS, talk
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.templates import ChatTemplate
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


def differs_only_inside(spans, ours, theirs):
    """Whether two id lists agree but for what stands in our spans, whatever stands there in theirs."""
    pieces, place = [], 0
    for start, end in spans:
        pieces.append(ours[place:start])
        place = end
    pieces.append(ours[place:])
    first, *middle, last = pieces if len(pieces) > 1 else [*pieces, []]
    if theirs[: len(first)] != first:
        return False
    at = len(first)
    for piece in middle:
        at = next((i for i in range(at, len(theirs)) if theirs[i : i + len(piece)] == piece), len(theirs) + 1)
        at += len(piece)
    return at + len(last) <= len(theirs) and theirs[len(theirs) - len(last) :] == last


@pytest.mark.parametrize(
    ("name", "prompt"),
    # Gemma has no system role; how one is folded is tested with the renderer.
    [
        *((name, None) for name in FAMILIES),
        *(
            pytest.param(name, "Be brief.", marks=pytest.mark.full("a prompt of the system is a turn before"))
            for name in FAMILIES
            if name != "gemma"
        ),
    ],
)
@given(turns=TALKS)
@settings(max_examples=15, deadline=None)
def test_surrounds_answers_as_the_template_writes(name, prompt, turns):
    bundle, renderer = BUNDLES[name], RENDERERS[name]
    trajectory, requests, completions, conversations = talk(renderer, turns, prompt=prompt)
    assert ledger_violations(trajectory, completions, requests) == []
    for number, (request, messages) in enumerate(zip(requests, conversations, strict=True)):
        segment = trajectory.turns[number].segment
        earlier = [(t.start, t.end) for t in trajectory.turns[:number] if t.segment == segment]
        assert differs_only_inside(earlier, request.prompt_ids, rendered(bundle, messages))
