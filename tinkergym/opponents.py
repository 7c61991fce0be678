"""Players of seats without a policy of their own, such as `tg.opponents.Scripted("heuristic")`."""

from tinkergym.schema.fixed_players import Base, External, Frozen, League, Replay, Scripted
from tinkergym.schema.jobs.parts import CollapseGuard
from tinkergym.schema.jobs.seats import SharedWith

__all__ = ["Base", "CollapseGuard", "External", "Frozen", "League", "Replay", "Scripted", "SharedWith"]
