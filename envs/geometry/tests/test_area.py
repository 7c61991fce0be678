import numpy as np
import pytest
from tinkergym_geometry.area import AreaEnv
from tinkergym_geometry.dialogues import areas, readings
from tinkergym_geometry.figures import FIGURES, Figure, draw

import tinkergym as tg
from tinkergym.errors import EpisodeProtocolError
from tinkergym.testing import EnvContract


class TestArea(EnvContract):
    def make(self):
        return tg.make("geometry/Area-v0")


def test_pays_one_for_right_number_and_nothing_otherwise():
    env = AreaEnv()
    for seed in range(5):
        for said, reward, unreadable in (
            (None, 1.0, 0.0),
            ("-1", 0.0, 1.0),
            ("many", 0.0, 1.0),
            ("7", 0.0, 0.0),
        ):
            env.reset(seed=seed)
            step = env.step(env.gold_action() if said is None else said)
            assert step[1:4] == (reward, True, False)
            assert step[4]["metrics"] == {"correct": reward, "unreadable": unreadable}
    with pytest.raises(EpisodeProtocolError):
        env.step("1")


def test_says_which_figure_a_picture_shows():
    rng = np.random.default_rng(0)
    drawn = {draw(figure, np.random.default_rng(3)).tobytes() for figure in FIGURES}
    assert len(drawn) == len(FIGURES) == 40
    assert (draw(FIGURES[0], rng) != draw(FIGURES[0], rng)).any()


def test_swaps_pictures_of_other_figures():
    same = 0
    for seed in range(60):
        right, swapped = AreaEnv(), AreaEnv(swapped=True)
        shown, other = (env.reset(seed=seed)[0]["image"] for env in (right, swapped))
        assert right.gold_action() == swapped.gold_action()
        same += (shown == other).all()
    assert same < 6


def test_computes_the_areas_of_figures():
    assert (Figure("rectangle", 6, 3).area, Figure("triangle", 6, 3).area) == (18, 9)


def test_answers_dialogues_as_often_right_as_they_say():
    rng = np.random.default_rng(0)
    assert {len(pictures) for pictures, _, _ in readings(rng, 40)} == {1, 2}
    assert all(answer.isdigit() for _, _, answer in areas(rng, 10, accuracy=0.5))
