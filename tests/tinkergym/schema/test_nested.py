from tinkergym.schema.nested import merged


def test_later_layers_win_section_by_section_and_none_is_changed():
    below, above = {"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 4}, "b": {"z": 5}}
    assert merged(below, above) == {"a": {"x": 1, "y": 4}, "b": {"z": 5}}
    assert below == {"a": {"x": 1, "y": 2}, "b": 3}
