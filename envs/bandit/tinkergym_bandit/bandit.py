"""One question, one answer, one payout: the smallest environment in which something can be learned."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces

from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym_bandit.machine import ARMS, payouts


class BanditEnv(gym.Env[str, str]):
    """Pull one of the offered arms; which of them pays best must be found out. See the pack's README."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(
        self, offered: int = 4, machine: int = 0, instructions: bool = False, render_mode: str | None = None
    ) -> None:
        """Set up the machine.

        Args:
            offered: How many of the arms an episode offers.
            machine: Which machine; it decides which arms pay.
            instructions: Say what to do in a system prompt, for models that never met this text before.
            render_mode: None; there is nothing to see.

        Raises:
            InvalidRequestError: A setting is out of range; its `field` says which.
        """
        if not 2 <= offered <= len(ARMS):
            raise InvalidRequestError(f"must be from 2 to {len(ARMS)}, not {offered!r}", field="offered")
        if machine < 0:
            raise InvalidRequestError(f"must not be negative, as {machine!r} is", field="machine")
        self.render_mode = render_mode
        if instructions:
            self.metadata = {
                **self.metadata,
                "system_prompt": "Each word is an arm of a slot machine. Answer with one of them, nothing else.",
            }
        self.observation_space = spaces.Text(max_length=100, min_length=1)
        self.action_space = spaces.Text(max_length=10, min_length=0)
        self._count = offered
        self._payouts = payouts(machine)
        self._offered: list[str] = []
        self._luck = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Offer some of the arms in a drawn order."""
        super().reset(seed=seed, options=options)
        drawn = self.np_random.permutation(len(ARMS))[: self._count]
        self._offered = [ARMS[int(arm)] for arm in drawn]
        # Drawn before the answer is known, so that the siblings of a group share their luck: two that pull the same
        # arm earn the same, and an arm that pays more often never earns less.
        self._luck = float(self.np_random.random())
        return f"Pull: {' '.join(self._offered)}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Pull the named arm; any other answer pays nothing and is counted as illegal."""
        if not self._offered:
            raise EpisodeProtocolError("no arm is offered", hint="call reset before step")
        arm = action.strip().lower()
        best = max(self._offered, key=self._payouts.__getitem__)
        legal = arm in self._offered
        self._offered = []
        probability = self._payouts[arm] if legal else 0.0
        reward = 1.0 if self._luck < probability else 0.0
        metrics = {"best": float(arm == best), "payout": probability, "illegal_move": float(not legal)}
        said = f"{arm} pays {reward:.0f}." if legal else "That arm was not offered."
        return said, reward, True, False, {"metrics": metrics}
