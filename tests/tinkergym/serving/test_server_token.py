import pytest

from tests.environment_server import TOKEN
from tinkergym.errors import (
    AuthenticationError,
    ServiceUnreachableError,
)


def test_types_errors_of_missing_token_wrong_token_and_absent_server(serve, connect, monkeypatch):
    url = serve()
    with pytest.raises(AuthenticationError):
        connect(url, token="wrong-token")
    monkeypatch.delenv("TINKERGYM_ENV_TOKEN", raising=False)
    with pytest.raises(AuthenticationError):
        connect(url, token=None)
    monkeypatch.setenv("TINKERGYM_ENV_TOKEN", TOKEN)
    env = connect(url, token=None)
    env.reset(seed=0)
    assert TOKEN not in repr(env.spec)
    with pytest.raises(ServiceUnreachableError):
        connect("ws://127.0.0.1:9", reconnect_seconds=0.05)
