import base64

import pytest

from tests.tinkergym.rollout.walks import Walk, plans, played
from tinkergym.registration.environments import make
from tinkergym.trajectory.trajectory import StopReason
from tinkergym.trajectory.turn_views import view_in

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 40).decode()
BOARD = {"kind": "board", "rows": ["X.", ".O"], "last": (1, 1)}
GOOD = [
    BOARD,
    {"kind": "grid", "rows": ["#.", ".@"], "legend": {"#": "wall"}},
    {"kind": "map", "places": ["bed 1", "desk 1"], "at": 1, "ways": [(0, 1)]},
    {"kind": "table", "columns": ["you"], "rows": [["rock"], ["paper"]]},
    {"kind": "image", "png": PNG},
]
BAD = [
    {"kind": "board", "rows": []},
    {"kind": "board", "rows": ["."], "onclick": "alert(1)"},
    {"kind": "board", "rows": ["." * 65]},
    {"kind": "table", "rows": [["x" * 201]]},
    {"kind": "image", "png": 'x" onerror="alert(1)'},
    {"kind": "image", "png": base64.b64encode(b"<svg onload=alert(1)>").decode()},
]


class Seen(Walk):
    """A walk with a view of each state."""

    view = BOARD

    def reset(self, **settings):
        observation, info = super().reset(**settings)
        return observation, {**info, "view": {"kind": "table", "rows": [["start"]]}}

    def reply(self, action):
        return *super().reply(action), {"view": self.view}


class Wrong(Seen):
    view = BAD[1]


@pytest.mark.parametrize("given", GOOD, ids=lambda one: one["kind"])
def test_reads_each_kind_of_view(given):
    view = view_in({"view": given})
    assert view.model_dump(exclude_defaults=True, exclude={"title"}) == given


@pytest.mark.parametrize("given", BAD)
def test_rejects_what_is_not_the_data_of_a_view(given):
    with pytest.raises(ValueError):
        view_in({"view": given})


@pytest.mark.parametrize(
    "info", [None, {}, {"view": 3}, {"view": {"kind": "camera"}}, {"view": {"rows": []}}]
)
def test_leaves_other_uses_of_the_name_alone(info):
    assert view_in(info) is None


def test_records_the_view_with_the_observation_it_came_with():
    record = played(plans(3), lambda reference: Seen())["e2"]
    kinds = [turn.view.kind for turn in record.turns]
    assert kinds == ["table", *["board"] * (len(kinds) - 1)]
    assert record.final_view.kind == "board"


def test_fails_the_episode_of_an_invalid_view():
    record = played(plans(1), lambda reference: Wrong())["e0"]
    assert record.stop_reason is StopReason.ENVIRONMENT_ERROR
    assert "view" in record.error


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("board/TicTacToeVs-v0", "board"), ("games/NimVs-v0", "board"), ("tabletop/DealVs-v0", "table")),
        *(("classic/FrozenLake-v0", "grid"), ("tabletop/LiarsDiceVs-v0", "table")),
    ],
)
def test_shows_shipped_games_before_and_after_a_move(name, kind):
    env = make(name)
    _, before = env.reset(seed=1)
    *_, after = env.step(env.get_wrapper_attr("legal_actions")()[0])
    views = [view_in(info) for info in (before, after)]
    assert {view.kind for view in views} == {kind}
    assert views[0] != views[1] or name.startswith("classic/")
