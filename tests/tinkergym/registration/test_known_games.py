import pytest

import tinkergym as tg
from tests.tinkergym.registration.coins import Coins
from tinkergym.errors import InvalidRequestError, UnknownEnvironmentError


def test_lists_registered_opponents_with_the_first_as_default():
    tg.register_game("test/Greedy-v0", Coins, opponents=("greedy",))
    assert tg.make("test/GreedyVs-v0").spec.kwargs["opponent"] == "greedy"
    with pytest.raises(InvalidRequestError) as caught:
        tg.make("test/GreedyVs-v0", opponent="random")
    assert caught.value.field == "opponent"


def test_suggests_what_is_close_for_unknown_game():
    tg.register_game("test/Greedy-v0", Coins, opponents=("greedy",))
    with pytest.raises(UnknownEnvironmentError):
        tg.make_game("test/Gredy-v0")
