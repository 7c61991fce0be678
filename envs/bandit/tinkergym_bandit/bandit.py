"""One question, one answer, one payout: the smallest environment in which something can be learned."""

from __future__ import annotations

from typing import Any

from tinkergym.core import SingleTurnEnv
from tinkergym.errors import InvalidRequestError
from tinkergym_bandit.machine import ARMS, payouts


class BanditEnv(SingleTurnEnv):
    """Pull one of the offered arms; the policy must find out which one pays best. See the pack's README."""

    def __init__(
        self, offered: int = 4, machine: int = 0, instructions: bool = False, render_mode: str | None = None
    ) -> None:
        """Create the environment.

        Args:
            offered: Number of arms offered per episode.
            machine: Number of the machine, which determines the arms' payouts.
            instructions: Explain the task in a system prompt, for models not trained on it.
            render_mode: Must be None; there is nothing to render.

        Raises:
            InvalidRequestError: A setting is out of range; its `field` says which.
        """
        super().__init__(render_mode)
        if not 2 <= offered <= len(ARMS):
            raise InvalidRequestError(f"must be from 2 to {len(ARMS)}, not {offered!r}", field="offered")
        if machine < 0:
            raise InvalidRequestError(f"must not be negative, but is {machine!r}", field="machine")
        if instructions:
            prompt = "Each word is an arm of a slot machine. Answer with one word."
            self.metadata = {**self.metadata, "system_prompt": prompt}
        self._count = offered
        self._payouts = payouts(machine)
        self._offered: list[str] = []
        self._luck = 0.0

    def ask(self, options: dict[str, Any]) -> str:
        """Offer some of the arms in random order."""
        drawn = self.np_random.permutation(len(ARMS))[: self._count]
        self._offered = [ARMS[int(arm)] for arm in drawn]
        # Drawn before the answer is known, so siblings share their luck: those that pull the same arm earn
        # the same, and an arm that pays more often never earns less.
        self._luck = float(self.np_random.random())
        return f"Pull: {' '.join(self._offered)}"

    def score(self, answer: str) -> tuple[float, dict[str, float]]:
        """Pull the named arm; any other answer pays nothing and is counted as illegal."""
        arm = answer.strip().lower()
        legal = arm in self._offered
        payout = self._payouts[arm] if legal else 0.0
        best = max(self._payouts[offered] for offered in self._offered)
        metrics = {
            "best": float(payout == best),
            "payout": payout,
            "regret": best - payout,
            "illegal_move": float(not legal),
        }
        return float(self._luck < payout), metrics

    def gold_action(self) -> str:
        """Return the offered arm that pays most often."""
        return max(self._offered, key=self._payouts.__getitem__)

    def legal_actions(self) -> list[str]:
        """Return the offered arms."""
        return list(self._offered)
