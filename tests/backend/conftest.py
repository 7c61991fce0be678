"""The fixtures of a pool worker in this process, and of a service as processes."""

from tests.backend.lab import lab, learner, make_lab, publishes_wrongly, warm_site, written, written_in
from tests.backend.served import serving

__all__ = ["lab", "learner", "make_lab", "publishes_wrongly", "serving", "warm_site", "written", "written_in"]
