"""The tables. A change here needs a revision in `migrations/versions`.

JSON that only pydantic reads is stored as text, so it is returned unchanged. One row of `episodes` holds a
whole trajectory, because nothing in the service asks for single tokens.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.types import TypeEngine

_LONG = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits: SQLite's integers always have them, and only a plain INTEGER may be its row number."""
_NAME = String().with_variant(String(collation="C"), "postgresql")
"""Text by which rows are sorted: by its bytes, whatever the server's language."""

metadata = MetaData()

# Written by versions of tinkergym that knew no revisions.
schema_version = Table("schema_version", metadata, Column("version", Integer, primary_key=True))
# Written by Alembic; see `schema_version.py`.
alembic_version = Table("alembic_version", metadata, Column("version_num", String(32), primary_key=True))

tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("created_at", Float, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", String, primary_key=True),
    # Only the hash, so reading the database does not reveal keys.
    Column("sha256", String, nullable=False, unique=True),
    Column("tenant_id", String, ForeignKey("tenants.tenant_id"), nullable=False),
    Column("name", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("revoked_at", Float),
    Column("read_only", Boolean, nullable=False, server_default=false()),
    # Its limits, if any, and what is left of them; see `key_rates.py`.
    Column("requests_per_minute", BigInteger),
    Column("tokens_per_minute", BigInteger),
    Column("requests_left", Float),
    Column("tokens_left", Float),
    Column("counted_at", Float),
)

# Browsers that are logged in to the dashboard, each with the rights of a key.
sessions = Table(
    "sessions",
    metadata,
    Column("sha256", String, primary_key=True),
    Column("key_id", String, ForeignKey("api_keys.key_id"), nullable=False),
    Column("expires_at", Float, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    # Grows in order of creation; the queue and listings are sorted by it.
    Column("number", _LONG, primary_key=True),
    Column("job_id", String, nullable=False, unique=True),
    Column("tenant_id", String, ForeignKey("tenants.tenant_id"), nullable=False),
    Column("idempotency_key", String),
    # Hash of the request sent with that key: `spec` contains resolved names, which may differ the next time.
    Column("request_sha256", String),
    Column("spec", Text, nullable=False),
    # Parts of the spec that placement needs: the base model, and a list of others to load next to it.
    Column("model", String, nullable=False, server_default=""),
    Column("other_models", Text, nullable=False, server_default="[]"),
    Column("packs", Text, nullable=False),
    Column("client_packs", Text, nullable=False, server_default="[]"),
    Column("state", String, nullable=False),
    Column("reason", Text, nullable=False, default=""),
    Column("error", Text),
    Column("step", Integer, nullable=False, default=0),
    Column("policy_version", Integer, nullable=False, default=0),
    Column("attempt", Integer, nullable=False, default=0),
    Column("cancel_requested", Boolean, nullable=False, default=False),
    # Why the job should pause, while its worker has not noticed yet.
    Column("pause_requested", Text),
    # Settings changed since the job was submitted; `spec` stays unchanged.
    Column("updates", Text, nullable=False, server_default="[]"),
    # The current state, as JSON.
    Column("budget", Text),
    Column("used_seconds", Float, nullable=False, server_default="0"),
    Column("used_tokens", _LONG, nullable=False, server_default="0"),
    # Until when `used_seconds` counts the job's time on a worker.
    Column("counted_at", Float),
    # The last step ever recorded; `step` goes back when a worker dies after a checkpoint.
    Column("furthest_step", Integer, nullable=False, server_default="0"),
    # The lease. `epoch` grows with every change of workers and fences off previous ones.
    Column("epoch", Integer, nullable=False, default=0),
    Column("worker_id", String),
    Column("lease_expires_at", Float),
    Column("last_seq", Integer, nullable=False, default=0),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    # What its owner notes about it: `JobLabels` as JSON.
    Column("labels", Text, nullable=False, server_default="{}"),
    UniqueConstraint("tenant_id", "idempotency_key"),
    Index("jobs_by_tenant", "tenant_id", "number"),
    # Each has all that a scheduler's tick asks of many jobs. The queries repeat their conditions.
    Index(
        "jobs_queued",
        "model",
        "tenant_id",
        "reason",
        "number",
        "state",  # Always the same; without it SQLite would read the rows for the condition's sake.
        sqlite_where=text("state = 'queued'"),
        postgresql_where=text("state = 'queued'"),
    ),
    Index(
        "jobs_held",
        "worker_id",
        sqlite_where=text("worker_id IS NOT NULL"),
        postgresql_where=text("worker_id IS NOT NULL"),
    ),
    sqlite_autoincrement=True,
)

events = Table(
    "events",
    metadata,
    Column("job_id", String, ForeignKey("jobs.job_id"), primary_key=True),
    # Without gaps, in commit order: it is assigned while the job's row is locked.
    Column("seq", Integer, primary_key=True),
    Column("time", Float, nullable=False),
    Column("body", Text, nullable=False),
)

episodes = Table(
    "episodes",
    metadata,
    Column("number", _LONG, primary_key=True),
    Column("job_id", String, ForeignKey("jobs.job_id"), nullable=False),
    Column("episode_id", String, nullable=False),
    Column("step", Integer, nullable=False),
    # The EpisodeResult's JSON, compressed by zlib, and the hash of that JSON.
    Column("result", LargeBinary, nullable=False),
    Column("sha256", String, nullable=False),
    # Digests of its turns' completions that the engine is known to have returned, see `CapturedTokens`.
    Column("captured", LargeBinary, nullable=False),
    UniqueConstraint("job_id", "episode_id"),
    Index("episodes_by_step", "job_id", "step"),
)

# Facts for a job's certificate. Writing one again replaces it.
facts = Table(
    "facts",
    metadata,
    Column("job_id", String, ForeignKey("jobs.job_id"), primary_key=True),
    Column("kind", String, primary_key=True),
    Column("agent", _NAME, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    # JSON compressed by zlib.
    Column("body", LargeBinary, nullable=False),
)

policy_calls = Table(
    "policy_calls",
    metadata,
    Column("job_id", String, ForeignKey("jobs.job_id"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    # The call's JSON, compressed by zlib; empty once a checkpoint covers it.
    Column("request", LargeBinary),
    Column("request_sha256", String, nullable=False),
    # The CallResult's JSON, compressed by zlib; empty until it is done.
    Column("result", LargeBinary),
)

policies = Table(
    "policies",
    metadata,
    Column("policy_id", String, primary_key=True),
    Column("tenant_id", String, ForeignKey("tenants.tenant_id"), nullable=False),
    Column("model", String, nullable=False),
    Column("adapter", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    # The job that created it, if any.
    Column("made_by_job", String, ForeignKey("jobs.job_id")),
    Index("policies_by_job", "made_by_job"),
)

# Which policies a job trains. The agent is empty in a job with a single policy.
job_policies = Table(
    "job_policies",
    metadata,
    Column("job_id", String, ForeignKey("jobs.job_id"), primary_key=True),
    Column("agent", _NAME, primary_key=True),
    Column("policy_id", String, ForeignKey("policies.policy_id"), nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("policy_id", String, ForeignKey("policies.policy_id"), primary_key=True),
    # Counts publishes, from 1; for a policy trained by calls, the number of the publishing call.
    Column("version", Integer, primary_key=True),
    Column("train_step", Integer, nullable=False),
    Column("weights_sha256", String, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("policy_id", String, ForeignKey("policies.policy_id"), primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("view", Text, nullable=False),
)

# Names of the OpenAI API to which tenants promote versions; see `schema/served_names.py`.
served_names = Table(
    "served_names",
    metadata,
    Column("tenant_id", String, ForeignKey("tenants.tenant_id"), primary_key=True),
    Column("name", String, primary_key=True),
    # References with a version; the second is empty without a canary, whose share of the requests follows.
    Column("policy", String, nullable=False),
    Column("canary", String, nullable=False),
    Column("share", Float, nullable=False),
    Column("changed_at", Float, nullable=False),
)

# The files are blobs, by tenant and hash.
images = Table(
    "images",
    metadata,
    Column("tenant_id", String, ForeignKey("tenants.tenant_id"), primary_key=True),
    Column("sha256", String, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("used_at", Float, nullable=False),
    Index("images_by_sha256", "sha256"),
)

# Tokens of environment servers, keys of judges and external models; jobs have their names.
secrets = Table(
    "secrets",
    metadata,
    Column("name", String, primary_key=True),
    # Of the tenant and the secret: the same secret of a tenant is one row.
    Column("sha256", String, nullable=False, unique=True),
    Column("value", Text, nullable=False),
    Column("stored_at", Float, nullable=False),
)


def _address(size: TypeEngine[int]) -> tuple[Column[Any], ...]:
    """Return what pools and engine hosts have in common."""
    return (
        Column("model", String, nullable=False),
        Column("url", String, nullable=False),
        Column("seen_at", Float, nullable=False),
        # Of a pool with its environment workers; 0 while unknown.
        Column("memory_bytes", size, nullable=False, server_default="0"),
    )


pools = Table(
    "pools",
    metadata,
    Column("pool_id", String, primary_key=True),
    *_address(_LONG),
    Column("token", String, nullable=False),
)

engine_hosts = Table(
    "engine_hosts",
    metadata,
    Column("engine_id", String, primary_key=True),
    *_address(BigInteger()),
    Column("pool_id", String, nullable=False),
    # The address of the machine; empty on a service's only one.
    Column("node", String, nullable=False),
)

wanted_pools = Table(
    "wanted_pools",
    metadata,
    Column("model", String, primary_key=True),
    Column("wanted_at", Float, nullable=False),
)

refused_pools = Table(
    "refused_pools",
    metadata,
    Column("model", String, primary_key=True),
    Column("error", Text, nullable=False),
    Column("refused_at", Float, nullable=False),
)

parts = Table(
    "parts",
    metadata,
    Column("name", String, primary_key=True),
    Column("seen_at", Float, nullable=False),
)
