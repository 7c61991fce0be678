"""Who plays a seat that is not trained: `tg.opponents.Scripted("heuristic")`, `tg.opponents.League()`, ..."""

from tinkergym.schema.collapse_guard import CollapseGuard
from tinkergym.schema.opponents import Base, External, Frozen, League, Replay, Scripted

__all__ = ["Base", "CollapseGuard", "External", "Frozen", "League", "Replay", "Scripted"]
