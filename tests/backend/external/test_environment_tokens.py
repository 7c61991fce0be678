import time
from contextlib import closing

import pytest

from backend.errors import ConfigError
from backend.external.environment_tokens import adopt_folder, fetch, put_away, remove_unused
from backend.external.episode_secrets import with_secrets
from backend.store.store import Store
from tinkergym.schema.episodes import EpisodeRequest, LeaseReply, SeatPlan, TablePlayer
from tinkergym.schema.fixed_players import External
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, Sampling


def ref(**kwargs):
    return EnvironmentRef(id="tinkergym/Remote-v0", kwargs={"url": "wss://envs.example.org", **kwargs})


@pytest.fixture
def store(tmp_path):
    with closing(Store.open(f"sqlite:///{tmp_path / 'db.sqlite3'}")) as opened:
        for name in ("ada", "bob"):
            opened.keys.ensure_tenant(name)
        yield opened


@pytest.fixture
def ada(store):
    return store.tenant("ada")


def fetched(store, stored):
    return fetch(stored, store.service().secret)


def test_hides_a_token_and_brings_it_back(store, ada):
    secret = ref(token="a-secret")
    stored = put_away(secret, ada)
    assert "a-secret" not in stored.model_dump_json()
    assert fetched(store, stored) == secret


def test_stores_same_request_in_same_words_but_per_tenant(store, ada):
    one = put_away(ref(token="a-secret"), ada)
    assert put_away(ref(token="a-secret"), store.tenant("ada")) == one
    assert put_away(ref(token="a-secret"), store.tenant("bob")) != one


def test_treats_token_that_looks_like_a_stored_one_as_any(store, ada):
    adas = put_away(ref(token="a-secret"), ada)
    stolen = put_away(ref(token=adas.kwargs["token"]), store.tenant("bob"))
    assert fetched(store, stolen).kwargs["token"] == adas.kwargs["token"]


def test_keeps_reference_without_a_token_so(store, ada):
    assert fetched(store, put_away(ref(), ada)) == ref()


LATER = float("inf")


def test_removes_token_when_no_job_needs_it_and_keeps_others(store, ada):
    kept, ended = (put_away(ref(token=word), ada) for word in ("one", "two"))
    assert remove_unused(store.service(), [kept, ref()], LATER) == 1
    assert fetched(store, kept).kwargs["token"] == "one"
    with pytest.raises(ConfigError, check=lambda error: error.field == "token"):
        fetched(store, ended)


def test_keeps_token_whose_job_is_about_to_be_stored(store, ada):
    stored = put_away(ref(token="one"), ada)
    assert remove_unused(store.service(), [], time.time()) == 0
    assert fetched(store, stored) == ref(token="one")


def test_keeps_token_of_two_jobs_until_both_have_ended(store, ada):
    first, second = (put_away(ref(token="one"), ada) for _ in range(2))
    assert remove_unused(store.service(), [second], LATER) == 0
    assert remove_unused(store.service(), [], LATER) == 1
    assert first == second


def test_moves_tokens_out_of_an_earlier_versions_folder(store, tmp_path):
    folder = tmp_path / "env-tokens"
    folder.mkdir()
    (folder / ("0" * 32)).write_text("a-secret")
    (folder / "names.key").write_bytes(b"x" * 32)
    for _ in range(2):
        adopt_folder(folder, store.service())
    assert fetched(store, ref(token=f"stored:{'0' * 32}")) == ref(token="a-secret")
    assert not folder.exists()


def test_hands_secrets_out_with_leased_episodes(store, ada):
    stored = put_away(ref(token="a-secret"), ada)
    key = put_away(EnvironmentRef(id="x", kwargs={"token": "a-key"}), ada).kwargs["token"]
    external = External(url="https://models.example.org", model="small", api_key=key)
    seat = SeatPlan(policy="p", policy_version=0, model="m", sampling_seed=0, sampling=Sampling())
    seats = {
        "a": seat,
        "b": seat.model_copy(update={"table": TablePlayer(kind="external", external=external)}),
    }
    episode = EpisodeRequest(
        job_id="job-1",
        episode_id="job-1:0:0",
        step=0,
        index=0,
        group=0,
        environment=stored,
        seed=0,
        seats=seats,
        limits=Limits(),
        lease_id="l",
        lease_seconds=1.0,
    )
    for read, token, api_key in (
        (store.service().secret, "a-secret", "a-key"),
        (lambda name: None, None, ""),
    ):
        (one,) = with_secrets(LeaseReply(episodes=[episode], job_state="running"), read).episodes
        assert one.environment.kwargs.get("token") == token
        assert one.seats["b"].table.external.api_key == api_key
