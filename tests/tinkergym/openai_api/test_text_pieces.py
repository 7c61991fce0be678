import itertools
import random

import pytest

from benchmarks.template_families import shipped_template, template_bundle
from tinkergym.agent.renderer import Renderer
from tinkergym.openai_api.text_pieces import TextPieces
from tinkergym.testing.bundles import FAMILIES, byte_bundle, family_bundle

TEXTS = ["", "plain", "é ü 漢字 🙂🙂 end", "tail \n\n ", "STO then STOP", "<tool\n<|im", "\ufffd?", "a" * 50]


@pytest.fixture(scope="module")
def renderers():
    bundles = [byte_bundle(), *map(family_bundle, FAMILIES)]
    return [Renderer.from_bundle(bundle) for bundle in bundles]


def streamed(renderer, token_ids, sizes, **settings):
    """Return the pieces of a completion whose tokens arrive in parts of these sizes."""
    pieces, start, found = TextPieces(renderer, **settings), 0, []
    for size in sizes:
        found.append(pieces.add(token_ids[start : start + size]))
        start += size
    return pieces, found


def ids_of(renderer, text):
    return renderer.encode_answer(text)[:-1]


@pytest.mark.parametrize("text", TEXTS)
def test_joins_to_the_whole_text_wherever_it_is_cut(renderers, text):
    for renderer in renderers:
        ids = ids_of(renderer, text)
        whole = renderer.decode_answer(ids)
        for cut in range(len(ids) + 1):
            pieces, found = streamed(renderer, ids, [cut, len(ids) - cut])
            assert "".join(found) + pieces.rest(whole) == whole


def test_never_cuts_within_a_character(renderers):
    random.seed(0)
    for renderer in renderers:
        ids = ids_of(renderer, "é ü 漢字 🙂🙂")
        _, found = streamed(renderer, ids, [1] * len(ids))
        assert "\ufffd" not in "".join(found)


def test_joins_to_the_text_of_random_tokens(renderers):
    drawn = random.Random(7)
    for renderer, _ in itertools.product(renderers, range(50)):
        ids = [drawn.randrange(renderer.vocab_size) for _ in range(40)]
        ids = [token for token in ids if token not in renderer.stop_ids]
        whole = renderer.decode_answer(ids)
        pieces, found = streamed(renderer, ids, [1] * len(ids))
        assert "".join(found) + pieces.rest(whole) == whole
        assert whole.startswith("".join(found))


def test_holds_back_what_may_become_a_stop_string(renderers):
    renderer = renderers[0]
    ids = ids_of(renderer, "go STOLEN STOP")
    _, found = streamed(renderer, ids, [1] * len(ids), stop=["STOP", "\n\n"])
    assert "".join(found) == "go STOLEN "
    assert not any(piece.endswith(("S", "ST", "STO")) for piece in itertools.accumulate(found))


def test_holds_back_calls_of_tools_from_their_first_character(renderers):
    ids = ids_of(renderers[0], "I look. \n<tool_call>\n{}</tool_call>")
    _, found = streamed(renderers[0], ids, [1] * len(ids), call_opening="<tool_call>")
    assert "".join(found) == "I look."


def test_returns_nothing_early_where_a_channel_may_follow():
    renderer = Renderer.from_bundle(template_bundle("gptoss", shipped_template("gptoss")))
    pieces = TextPieces(renderer)
    assert (pieces.add(renderer.encode_answer("hello")[:-1]), pieces.rest("hello")) == ("", "hello")
