import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.opponents import Base, Frozen, League, Replay, Scripted


def test_takes_first_setting_by_position():
    assert Scripted("random") == Scripted(name="random")
    assert Frozen("job-1@40") == Frozen(policy="job-1@40")
    assert Replay("job-1") == Replay(job="job-1")


def test_records_results_by_who_plays():
    players = [Scripted("random"), Frozen("job-1/black@40"), Base(), Replay("job-1")]
    assert [player.label for player in players] == ["random", "job-1/black@40", "base", "replay"]


@pytest.mark.parametrize("make", [lambda: Frozen("nano"), lambda: Replay("job-1@3"), lambda: Scripted("")])
def test_rejects_what_names_nobody(make):
    with pytest.raises(InvalidRequestError):
        make()


@pytest.mark.parametrize(
    "settings",
    [
        {"anchor_share": 0.7, "current_share": 0.7},
        {"anchors": [], "anchor_share": 0.2},
        {"anchors": [Base()], "anchor_share": 0},
        {"anchor_share": 0.5, "current_share": 0.5, "snapshot_every": 3},
        {"anchor_share": 0.5, "current_share": 0.5, "past": "prioritized"},
    ],
)
def test_rejects_shares_of_a_league_that_would_do_nothing(settings):
    with pytest.raises(InvalidRequestError):
        League(**settings)


def test_gives_past_versions_what_the_shares_leave():
    assert League(anchor_share=0.2, current_share=0.5).past_share == pytest.approx(0.3)
    assert not League(anchor_share=0.4, current_share=0.6).has_past


def test_reads_game_with_players_as_they_are_sent():
    league = League(anchors=[Scripted("random"), Frozen("job-1@2")])
    assert League.model_validate_json(league.model_dump_json()) == league
    assert tg.opponents.League is League
