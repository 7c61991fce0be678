import json

import pytest

from benchmarks import chart, common


def test_shows_figures_that_have_a_margin_in_chart(tmp_path):
    pytest.importorskip("matplotlib")
    figure = {"what": "speed", "asked": ">= 1", "measured": "2", "reached": True}
    (tmp_path / "bare.json").write_text(json.dumps({"figures": [figure]}))
    assert chart.draw(["bare", "missing"], tmp_path / "figures.png", tmp_path) is None
    (tmp_path / "one.json").write_text(json.dumps({"figures": [{**figure, "margin": 2.0}]}))
    path = chart.draw(["bare", "one"], tmp_path / "figures.png", tmp_path)
    assert path is not None
    assert path.read_bytes().startswith(b"\x89PNG")


def test_keeps_figure_without_a_margin_readable():
    figure = common.Figure(what="a", asked="b", measured="c", reached=True)
    assert figure.margin is None
