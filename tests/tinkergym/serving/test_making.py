import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.serving.making import check_render_mode, description_of, maker
from tinkergym.serving.server_settings import ServerSettings

SETTINGS = ServerSettings(environment_id="board/TicTacToeVs-v0", token="a-long-token")


def test_describes_what_is_served_by_one_made_environment():
    description = description_of(SETTINGS)
    assert description["id"] == "board/TicTacToeVs-v0"
    env = maker(SETTINGS)()
    assert env.reset(seed=1)[0]
    env.close()


def test_rejects_before_connecting_what_cannot_be_made():
    with pytest.raises(InvalidRequestError):
        description_of(SETTINGS.model_copy(update={"environment_id": "nobody/Has-v0"}))


def test_takes_only_ways_of_rendering_that_can_travel():
    description = {"id": "x", "metadata": {"render_modes": ["rgb_array"]}}
    assert check_render_mode(None, description) is None
    assert check_render_mode("rgb_array", description) == "rgb_array"
    with pytest.raises(InvalidRequestError) as refused:
        check_render_mode("human", description)
    assert refused.value.field == "render_mode"
