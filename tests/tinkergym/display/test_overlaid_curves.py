from tinkergym.display.overlaid_curves import overlaid


def test_draws_curves_with_a_mark_each():
    rising, falling = [(1, 0.0), (11, 1.0)], [(1, 1.0), (11, 0.0)]
    top, middle, low, steps = overlaid([rising, falling], "AB", rows=3, columns=11)
    assert (top.split("┤")[1][0], top[-1]) == ("B", "A")
    assert "*" in middle
    assert (low.split("┤")[1][0], low[-1]) == ("A", "B")
    assert steps.split() == ["└step", "1", "11"]


def test_draws_nothing_without_points():
    assert len(overlaid([[], []], "AB")) == 1
