from examples.shared.nested import merged


def test_lets_later_layers_win_by_section_unchanged():
    below, above = {"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 4}, "b": {"z": 5}}
    assert merged(below, above) == {"a": {"x": 1, "y": 4}, "b": {"z": 5}}
    assert below == {"a": {"x": 1, "y": 2}, "b": 3}
