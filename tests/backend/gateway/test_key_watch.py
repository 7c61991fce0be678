import pytest

pytestmark = pytest.mark.service


def test_rejects_revoked_key_immediately(gateway, client):
    assert client.get("/v1/jobs").status_code == 200
    gateway.store.keys.revoke(gateway.store.keys.list(gateway.tenants["ada"])[0].key_id)
    assert client.get("/v1/jobs").status_code == 401
