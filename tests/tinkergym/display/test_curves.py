from hypothesis import given
from hypothesis import strategies as st

from tinkergym.display.curves import condense
from tinkergym.display.html import curve, histogram
from tinkergym.display.progress import sparkline


@given(st.lists(st.floats(-1e300, 1e300), max_size=600), st.text())
def test_draws_every_curve_as_a_picture(values, name):
    for draw in (curve, histogram):
        drawn = draw(values, name.replace("\x00", ""))
        assert bool(drawn) == bool(values)
        assert "nan" not in drawn and "inf" not in drawn


def test_draws_line_of_blocks_from_lowest_to_highest_value():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([]) == ""


def test_averages_more_values_than_columns():
    assert condense([1, 3, 5, 7], 2) == [2, 6]
    assert len(condense(list(range(1001)), 60)) == 60
