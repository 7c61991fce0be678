"""Who plays a seat that is not trained: `tg.opponents.Scripted("heuristic")`, `tg.opponents.League()`, ..."""

from tinkergym.schema.collapse_guard import CollapseGuard
from tinkergym.schema.opponents import Base, Frozen, League, Replay, Scripted

__all__ = ["Base", "CollapseGuard", "Frozen", "League", "Replay", "Scripted"]
