import numpy as np
from tinkergym_board.dialogues import dialogues
from tinkergym_board.text import cell_names


def test_gives_dialogues_of_whole_episodes_of_legal_moves():
    for messages in dialogues(np.random.default_rng(0), 100):
        assert [m["role"] for m in messages] == ["user", "assistant"] * (len(messages) // 2)
        for shown, answered in zip(messages[::2], messages[1::2], strict=True):
            assert answered["content"] in shown["content"].split()
            assert answered["content"] in cell_names(5)


def test_shows_every_size_and_both_seats_in_dialogues():
    first = [messages[0]["content"] for messages in dialogues(np.random.default_rng(0), 200)]
    assert {len(text.splitlines()) - 1 for text in first} == {3, 4, 5}
    assert {text.splitlines()[0] for text in first} == {"You are X.", "You are O."}


def test_gives_same_dialogues_by_the_same_generator():
    one, other = (list(dialogues(np.random.default_rng(5), 20)) for _ in range(2))
    assert one == other
