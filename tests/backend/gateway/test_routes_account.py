import pytest

pytestmark = pytest.mark.service


def test_shows_a_tenant_its_own_keys_and_use(gateway, client, spec):
    client.post("/v1/jobs", json=spec)
    (used,) = client.get("/v1/usage").json()["jobs"]
    assert (used["tenant_id"], used["model"], used["jobs"], used["unfinished"]) == (
        gateway.tenants["ada"],
        "nano",
        1,
        1,
    )
    (key,) = client.get("/v1/keys").json()["keys"]
    assert (key["name"], key["read_only"], key["revoked_at"]) == ("test", False, None)
    assert gateway.keys["ada"] not in client.get("/v1/keys").text
    with gateway.client("bob") as bob:
        assert bob.get("/v1/usage").json()["jobs"] == []
        assert gateway.tenants["ada"] not in bob.get("/v1/keys").text


def test_shows_the_local_owner_every_tenant(gateway, client, owner, spec):
    client.post("/v1/jobs", json=spec)
    tenants = {one["tenant_id"] for one in owner.get("/v1/usage").json()["jobs"]}
    assert gateway.tenants["ada"] in tenants
    assert gateway.tenants["ada"] in {one["tenant_id"] for one in owner.get("/v1/keys").json()["keys"]}
