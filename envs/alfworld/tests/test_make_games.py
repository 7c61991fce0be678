"""The folder of made games is there whole or not at all; neither the package nor the engine is needed."""

import json

import pytest
from tinkergym_alfworld import make_games
from tinkergym_alfworld.catalogue import Catalogue
from tinkergym_alfworld.games import MANIFEST, TASK_TYPES
from tinkergym_alfworld.make_games import Wanted, made_games

from tinkergym.errors import InvalidRequestError

CATALOGUE = Catalogue(
    version="a catalogue for tests",
    holds={},
    openable=frozenset(),
    containers=frozenset(),
    affords={},
    rooms_for=dict.fromkeys(TASK_TYPES, frozenset({"Kitchen"})),
    seen=[],
    unseen=[],
)
NO_GAMES = Wanted(train=0, valid=0)


class Engine:
    """Does something when the games are being made."""

    def __init__(self, meanwhile):
        meanwhile()

    def close(self):
        pass


@pytest.fixture
def while_making(monkeypatch):
    monkeypatch.setattr(make_games, "refuse_missing_packages", lambda: None)
    monkeypatch.setattr(make_games, "packaged", lambda: CATALOGUE)

    def set_to(meanwhile):
        monkeypatch.setattr(make_games, "EngineProcess", lambda **_: Engine(meanwhile))

    set_to(lambda: None)
    return set_to


def test_uses_games_that_another_process_made_meanwhile(while_making, tmp_path):
    folder = tmp_path / "games"

    def other_process():
        while_making(lambda: None)
        made_games(folder, NO_GAMES)

    while_making(other_process)
    assert made_games(folder, NO_GAMES) == folder
    assert json.loads((folder / MANIFEST).read_text())["wanted"]["train"] == 0
    assert list(tmp_path.iterdir()) == [folder]


def test_does_not_take_other_games_that_appeared_meanwhile(while_making, tmp_path):
    folder = tmp_path / "games"

    def other_process():
        folder.mkdir()
        (folder / "something").write_text("else")

    while_making(other_process)
    with pytest.raises(InvalidRequestError) as caught:
        made_games(folder, NO_GAMES)
    assert caught.value.field == "folder"
    assert [path.name for path in folder.iterdir()] == ["something"]


@pytest.mark.parametrize("bad", [{"most_others": -1}, {"most_others": True}, {"train": "2"}, {"valid": -1}])
def test_rejects_what_is_no_number_of_things(bad, while_making, tmp_path):
    with pytest.raises(InvalidRequestError) as caught:
        made_games(tmp_path / "games", Wanted(**bad))
    assert caught.value.field == next(iter(bad))


def test_leaves_no_folder_after_a_failure(while_making, tmp_path):
    def fails():
        raise RuntimeError("no engine")

    while_making(fails)
    with pytest.raises(RuntimeError):
        made_games(tmp_path / "games", NO_GAMES)
    assert list(tmp_path.iterdir()) == []
