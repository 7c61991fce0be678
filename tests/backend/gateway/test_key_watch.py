import pytest

pytestmark = pytest.mark.service


def test_a_revoked_key_is_refused_at_once(gateway, client):
    assert client.get("/v1/jobs").status_code == 200
    gateway.store.keys.revoke(gateway.store.keys.list(gateway.tenants["ada"])[0].key_id)
    assert client.get("/v1/jobs").status_code == 401
