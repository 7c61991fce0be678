"""The fixtures of a pool worker in this process, and of a service as processes."""

from tests.backend.lab import lab, learner, make_lab, publishes_wrongly, warm_site, written, written_in
from tests.backend.postgres_server import postgres_server, postgres_url
from tests.backend.served import serving

__all__ = [
    "lab",
    "learner",
    "make_lab",
    "postgres_server",
    "postgres_url",
    "publishes_wrongly",
    "serving",
    "warm_site",
    "written",
    "written_in",
]
