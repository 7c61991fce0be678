"""Players of seats without a policy of their own, such as `tg.opponents.Scripted("heuristic")`."""

from tinkergym.schema.jobs.parts import CollapseGuard
from tinkergym.schema.jobs.seats import SharedWith
from tinkergym.schema.opponents import Base, External, Frozen, League, Replay, Scripted

__all__ = ["Base", "CollapseGuard", "External", "Frozen", "League", "Replay", "Scripted", "SharedWith"]
