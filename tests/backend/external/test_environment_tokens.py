import stat
import time

import pytest

from backend.errors import ConfigError
from backend.external.environment_tokens import EnvTokens
from tinkergym.schema.jobs.parts import EnvironmentRef


def ref(**kwargs):
    return EnvironmentRef(id="tinkergym/Remote-v0", kwargs={"url": "wss://envs.example.org", **kwargs})


@pytest.fixture
def tokens(tmp_path):
    return EnvTokens(tmp_path / "env-tokens")


def test_hides_a_token_and_brings_it_back(tokens):
    secret = ref(token="a-secret")
    stored = tokens.put_away(secret, "ada")
    assert "a-secret" not in stored.model_dump_json()
    assert tokens.fetch(stored) == secret


def test_lets_only_the_services_user_read_it(tokens, tmp_path):
    tokens.put_away(ref(token="a-secret"), "ada")
    folder = tmp_path / "env-tokens"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) == 3  # the token, the key of the names and the lock
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_stores_same_request_in_same_words_but_per_tenant(tokens, tmp_path):
    again = EnvTokens(tmp_path / "env-tokens")
    one = tokens.put_away(ref(token="a-secret"), "ada")
    assert again.put_away(ref(token="a-secret"), "ada") == one
    assert tokens.put_away(ref(token="a-secret"), "bob") != one


def test_treats_token_that_looks_like_a_stored_one_as_any(tokens):
    adas = tokens.put_away(ref(token="a-secret"), "ada")
    stolen = tokens.put_away(ref(token=adas.kwargs["token"]), "bob")
    assert tokens.fetch(stolen).kwargs["token"] == adas.kwargs["token"]


def test_keeps_reference_without_a_token_so(tokens, tmp_path):
    assert tokens.fetch(tokens.put_away(ref(), "ada")) == ref()
    assert not (tmp_path / "env-tokens").exists()


LATER = float("inf")


def test_removes_token_when_no_job_needs_it_and_keeps_others(tokens):
    kept, ended = (tokens.put_away(ref(token=word), "ada") for word in ("one", "two"))
    assert tokens.remove_unused([kept, ref()], LATER) == 1
    assert tokens.fetch(kept).kwargs["token"] == "one"
    with pytest.raises(ConfigError, check=lambda error: error.field == "token"):
        tokens.fetch(ended)
    assert tokens.put_away(ref(token="two"), "ada") == ended, "its name is the same as ever"


def test_keeps_token_whose_job_is_about_to_be_stored(tokens):
    stored = tokens.put_away(ref(token="one"), "ada")
    assert tokens.remove_unused([], time.time()) == 0
    assert tokens.fetch(stored) == ref(token="one")


def test_keeps_token_of_two_jobs_until_both_have_ended(tokens):
    first, second = (tokens.put_away(ref(token="one"), "ada") for _ in range(2))
    assert tokens.remove_unused([second], LATER) == 0
    assert tokens.remove_unused([], LATER) == 1
    assert first == second


def test_removes_what_a_killed_process_left_but_not_strangers_files(tokens, tmp_path):
    tokens.put_away(ref(token="one"), "ada")
    folder = tmp_path / "env-tokens"
    draft = folder / f".{'0' * 32}.{'a' * 16}"
    draft.write_text("half a tok")
    (folder / "README").write_text("mine")
    assert tokens.remove_unused([], LATER) == 2
    assert sorted(file.name for file in folder.iterdir()) == ["README", "names.key", "names.lock"]


def test_makes_no_folder_and_removes_nothing_without_tokens(tokens, tmp_path):
    assert tokens.remove_unused([], LATER) == 0
    assert not (tmp_path / "env-tokens").exists()


def test_leads_nowhere_else_by_a_name(tokens, tmp_path):
    (tmp_path / "private").write_text("not for you")
    with pytest.raises(ConfigError, check=lambda error: error.field == "token"):
        tokens.fetch(ref(token="stored:../private"))
