import pytest

from tinkergym.schema.names import REMOTE_ID, is_remote, local_id


@pytest.mark.parametrize(
    ("environment", "remote"),
    [
        (REMOTE_ID, True),
        ("http://127.0.0.1:9000", True),
        ("bandit/Bandit-v0", False),
        ("local/Maze-v0", False),
    ],
)
def test_tells_environments_of_servers_from_others(environment, remote):
    assert is_remote(environment) is remote


class Maze:
    pass


@pytest.mark.parametrize(("source", "wanted"), [(Maze, "local/Maze-v0"), (Maze(), "local/Maze-v0")])
def test_names_what_a_script_passes(source, wanted):
    assert local_id(source) == wanted


def test_names_an_environment_without_usable_name():
    assert local_id(lambda: None) == "local/lambda-v0"
