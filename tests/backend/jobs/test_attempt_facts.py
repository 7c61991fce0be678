import platform

from backend.jobs.attempt_facts import attempt_fact
from backend.store.job_rows import JobLease
from tinkergym import __version__
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec

LEASE = JobLease(
    job_id="job-1",
    worker_id="pool-1",
    epoch=3,
    attempt=2,
    spec=RLSpec(environment=EnvironmentRef(id="x"), steps=1),
    tenant_id="ada",
    expires_at=0.0,
)


def test_says_where_an_attempt_runs_and_with_which_versions():
    fact = attempt_fact(LEASE, {"engine": "transformers"}, "f" * 64)
    assert (fact.kind, fact.number, fact.attempt) == ("attempt", 2, 2)
    assert (fact.body.worker_id, fact.body.place) == ("pool-1", {"engine": "transformers"})
    assert fact.body.model_fingerprint == "f" * 64
    assert fact.body.versions["tinkergym"] == __version__
    assert fact.body.versions["python"] == platform.python_version()


def test_leaves_out_what_is_not_installed():
    assert all(attempt_fact(LEASE, {}).body.versions.values())
