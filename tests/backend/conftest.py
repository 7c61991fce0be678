"""The fixtures of a pool worker in this process."""

from tests.backend.lab import lab, learner, make_lab, publishes_wrongly, written, written_in

__all__ = ["lab", "learner", "make_lab", "publishes_wrongly", "written", "written_in"]
