import pytest

from tinkergym.errors import NotFoundError


def test_speaks_for_its_tenant_until_key_is_revoked(store):
    key = store.keys.create("ada", "laptop")
    assert store.keys.tenant_of(key) == "ada"
    (known,) = store.keys.list("ada")
    assert (known.name, known.revoked_at) == ("laptop", None)
    store.keys.revoke(known.key_id)
    store.keys.revoke(known.key_id)
    assert store.keys.tenant_of(key) is None
    assert store.keys.list("ada")[0].revoked_at is not None


@pytest.mark.parametrize("key", ["", "tg-", "tg-nonsense", "Bearer x", "🔑"])
def test_speaks_for_nobody_by_a_key_never_given_out(store, key):
    assert store.keys.tenant_of(key) is None


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_keeps_the_key_itself_out_of_the_database(store, tmp_path):
    key = store.keys.create("ada", "laptop")
    store.close()
    assert all(key.encode() not in file.read_bytes() for file in tmp_path.iterdir())


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_opens_database_to_its_owner_only(store, tmp_path):
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_rejects_revoking_an_unknown_key(store):
    with pytest.raises(NotFoundError):
        store.keys.revoke("key-never")


def test_counts_what_gateways_let_pass_of_a_key(store, clock):
    rate = store.keys.rights_of(store.keys.create("ada", "limited", requests_per_minute=2)).rate
    take = store.keys.rates.take
    allowed = [take(rate, unused=0, tokens=0, wanted=True).requests for _ in range(3)]
    assert allowed == [1, 1, 0]
    assert take(rate, unused=1, tokens=0, wanted=False).requests == 0
    assert take(rate, unused=0, tokens=0, wanted=True).requests == 1
    clock.now += 15
    refused = take(rate, unused=0, tokens=0, wanted=True)
    assert (refused.requests, refused.wait_seconds) == (0, 15)


def test_limits_nothing_unless_a_key_has_limits(store):
    assert store.keys.rights_of(store.keys.create("ada", "free")).rate is None
