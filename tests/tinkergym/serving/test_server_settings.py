import pytest
from pydantic import ValidationError

from tinkergym.serving.server_settings import ServerSettings

TOKEN = "a-long-token"


def test_hides_servers_token_and_calls_only_loopback_private():
    settings = ServerSettings(environment_id="a/B-v0", token=TOKEN)
    assert TOKEN not in repr(settings)
    assert settings.only_this_machine
    assert not settings.model_copy(update={"host": "10.0.0.1"}).only_this_machine
    assert settings.most_connections > 2 * settings.capacity


@pytest.mark.parametrize(
    "wrong",
    [
        *({"token": "short"}, {"token": "with a space"}, {"idle_timeout_seconds": 0.5}, {"capacity": 0}),
        *({"port": 70000}, {"environment_id": ""}, {"unknown": 1}, {"max_message_bytes": 3}),
    ],
)
def test_rejects_meaningless_setting(wrong):
    with pytest.raises(ValidationError):
        ServerSettings(**{"environment_id": "a/B-v0", "token": TOKEN, **wrong})
