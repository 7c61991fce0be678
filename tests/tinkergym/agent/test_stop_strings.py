import pytest

from tinkergym.agent.renderer import Renderer
from tinkergym.agent.stop_strings import stopped_text
from tinkergym.testing import byte_bundle

RENDERER = Renderer.from_bundle(byte_bundle())


def ids_of(text):
    return RENDERER.encode_answer(text)[: len(text.encode())]


def ended_by(stop, text):
    """The tokens through the one that completes a stop string, and what they say without it."""
    stops, ids = RENDERER.stop_strings(stop), ids_of(text)
    for place, token in enumerate(ids):
        if stops.completed_by(token):
            return ids[: place + 1], stops.before(ids[: place + 1])
    return ids, stops.before(ids)


@pytest.mark.parametrize(
    ("stop", "text", "before", "tokens"),
    [
        (["\n"], "one\ntwo", "one", 4),
        (["</answer>"], "<answer>4</answer> and more", "<answer>4", 18),
        (["never", "wo"], "two words", "t", 3),
        # What came before may begin it: of "aab" the second "a" is its first character.
        (["ab"], "aab", "a", 3),
        (["€"], "5 € more", "5 ", 5),
        (["é€"], "é€", "", 5),
        (["none"], "nothing", "nothing", 7),
    ],
)
def test_ends_answer_with_the_token_completing_the_string(stop, text, before, tokens):
    ids, said = ended_by(stop, text)
    assert (said, len(ids)) == (before, tokens)
    assert ids == ids_of(text)[:tokens]


def test_leaves_out_of_the_text_the_final_stop_id():
    stops = RENDERER.stop_strings(["x"])
    end = RENDERER.stop_ids[0]
    assert stopped_text(stops, [*ids_of("yes"), end], [end]) == "yes"
    assert stopped_text(stops, [], [end]) == ""
