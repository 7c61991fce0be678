import stat

import pytest

from backend.env_tokens import EnvTokens
from backend.errors import ConfigError
from tinkergym.wire import EnvironmentRef


def ref(**kwargs):
    return EnvironmentRef(id="tinkergym/Remote-v0", kwargs={"url": "wss://envs.example.org", **kwargs})


@pytest.fixture
def tokens(tmp_path):
    return EnvTokens(tmp_path / "env-tokens")


def test_a_token_is_out_of_sight_and_comes_back(tokens):
    secret = ref(token="a-secret")
    stored = tokens.put_away(secret, "ada")
    assert "a-secret" not in stored.model_dump_json()
    assert tokens.fetch(stored) == secret


def test_only_the_services_user_can_read_it(tokens, tmp_path):
    tokens.put_away(ref(token="a-secret"), "ada")
    folder = tmp_path / "env-tokens"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) == 2  # the token and the key of the names
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_the_same_request_is_stored_in_the_same_words_and_another_tenants_in_others(tokens, tmp_path):
    again = EnvTokens(tmp_path / "env-tokens")
    one = tokens.put_away(ref(token="a-secret"), "ada")
    assert again.put_away(ref(token="a-secret"), "ada") == one
    assert tokens.put_away(ref(token="a-secret"), "bob") != one


def test_a_token_that_looks_like_a_stored_one_is_a_token_like_any_other(tokens):
    adas = tokens.put_away(ref(token="a-secret"), "ada")
    stolen = tokens.put_away(ref(token=adas.kwargs["token"]), "bob")
    assert tokens.fetch(stolen).kwargs["token"] == adas.kwargs["token"]


def test_a_reference_without_a_token_stays_so(tokens, tmp_path):
    assert tokens.fetch(tokens.put_away(ref(), "ada")) == ref()
    assert not (tmp_path / "env-tokens").exists()


def test_a_name_leads_nowhere_else(tokens, tmp_path):
    (tmp_path / "private").write_text("not for you")
    with pytest.raises(ConfigError, match="cannot be read"):
        tokens.fetch(ref(token="stored:../private"))
