"""How an environment worker ended, which decides whose fault it may have been."""

from __future__ import annotations

from typing import Literal

WorkerEnd = Literal["died", "silent", "not_needed"]
"""By itself, or by the scheduler: because it was silent, or no longer needed."""
