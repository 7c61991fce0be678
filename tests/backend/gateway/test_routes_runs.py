"""What a certificate is made of, as clients get it."""

import pytest

from tinkergym.schema.parsing import parse_spec

pytestmark = pytest.mark.service


def test_has_no_certificate_of_a_job_that_trains_nothing(gateway, client):
    spec = parse_spec({"kind": "inference", "data": "a" * 64})
    job_id = gateway.store.tenant(gateway.tenants["ada"]).create_job(spec, {}).job_id
    refused = client.get(f"/v1/jobs/{job_id}/facts")
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "job_id")
