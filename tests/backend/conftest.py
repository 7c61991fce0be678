"""The fixtures of a pool worker in this process, of scripted jobs, and of a service as processes."""

from tests.backend.lab import lab, learner, make_lab, publishes_wrongly, warm_site, written, written_in
from tests.backend.postgres_server import postgres_server, postgres_url
from tests.backend.s3_server import s3_server
from tests.backend.scripted_jobs import held, jobs, jobs_store, make_jobs, written_jobs
from tests.backend.served import serving

__all__ = [
    "held",
    "jobs",
    "jobs_store",
    "lab",
    "learner",
    "make_jobs",
    "make_lab",
    "postgres_server",
    "postgres_url",
    "publishes_wrongly",
    "s3_server",
    "serving",
    "warm_site",
    "written",
    "written_in",
    "written_jobs",
]
