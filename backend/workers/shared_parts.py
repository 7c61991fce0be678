"""What the parts of a pool worker share."""

from __future__ import annotations

from dataclasses import dataclass

from backend.config import ServiceConfig
from backend.episodes.boards import Boards
from backend.episodes.captured_tokens import CapturedTokens
from backend.policies.call_bell import CallBell
from backend.store.store import ServiceStore
from backend.workers.guest_models import GuestModels, ServedModel
from backend.workers.model_loader import ModelLoader


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """One of each per pool. All are thread-safe; none calls back into a part that uses it."""

    config: ServiceConfig
    store: ServiceStore
    loader: ModelLoader
    own: ServedModel
    """The pool's own model."""
    guests: GuestModels
    boards: Boards
    bell: CallBell
    """Rings when a call of a policy arrived or was done."""
    captured: CapturedTokens

    def wake(self) -> None:
        """Let waiting job loops check whether they should end."""
        self.boards.wake()
        self.bell.ring()
