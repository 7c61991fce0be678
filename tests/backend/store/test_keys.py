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
