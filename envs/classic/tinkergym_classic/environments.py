"""The environments: a Gymnasium environment inside, text outside."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
from gymnasium.envs.toy_text.frozen_lake import MAPS, generate_random_map

from tinkergym.errors import InvalidRequestError
from tinkergym.spaces import Text
from tinkergym.wrappers.verbalize import StepReturn, Verbalize

Reset = tuple[str, dict[str, Any]]


class ClassicEnv(gym.Env[str, str]):
    """A classic environment as text; for a seed and actions it behaves exactly like the one inside."""

    metadata: dict[str, Any] = {"render_modes": [], "turns": "multi", "data": "free"}  # noqa: RUF012 - Gymnasium declares it so
    bare_id: ClassVar[str]
    """The id of the environment inside."""
    wording: ClassVar[str]
    on_illegal: ClassVar[str] = "retry:2"
    legend: ClassVar[dict[str, str]] = {}
    """What the characters of `rows` mean."""
    lose_reward: ClassVar[float] = 0.0
    """At most the worst result of the environment inside, so ending an episode on purpose never pays."""

    def __init__(
        self,
        *,
        on_illegal: str | None = None,
        decimals: int = 3,
        instructions: bool = True,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        """Create the environment inside and convert it to text.

        Args:
            on_illegal: `lose`, `random` or `retry:N`; see `tinkergym.wrappers.Verbalize`.
            decimals: Digits after the decimal point.
            instructions: Put the rules and the actions into the system prompt.
            render_mode: None.
            settings: Arguments of the environment inside.
        """
        self.render_mode = render_mode
        self.observation_space, self.action_space = Text(), Text()
        self._words: dict[str, Any] = {
            "wording": f"tinkergym_classic.wordings:{self.wording}",
            "on_illegal": self.on_illegal if on_illegal is None else on_illegal,
            "lose_reward": self.lose_reward,
            "decimals": decimals,
            "instructions": instructions,
        }
        self._settings = settings
        self._env = self._made(settings)
        if instructions:
            self.metadata = {**self.metadata, "system_prompt": self._env.metadata["system_prompt"]}
        if not self._has_chance():
            self.metadata = {**self.metadata, "deterministic": True}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode."""
        super().reset(seed=seed)
        observation, info = self._env.reset(seed=seed, options=options)
        return observation, self._shown(info)

    def step(self, action: str) -> StepReturn:
        """Take the action that the text names."""
        observation, reward, terminated, truncated, info = self._env.step(action)
        return observation, reward, terminated, truncated, self._shown(info)

    def close(self) -> None:
        """Close the environment inside."""
        self._env.close()

    def legal_actions(self) -> list[str] | None:
        """Return the names of all actions."""
        return self._env.legal_actions()

    def gold_action(self) -> str | None:
        """Return the best action now; None before `reset`."""
        return self._env.gold_action()

    def rows(self) -> list[list[str]] | None:
        """Return the world as cells, for people who watch; None if it has none."""
        return None

    def _shown(self, info: dict[str, Any]) -> dict[str, Any]:
        """Add the cells, with `@` where the policy is."""
        if (rows := self.rows()) is None:
            return info
        y, x = divmod(int(self._env.unwrapped.s), len(rows[0]))  # type: ignore[attr-defined] # of toy text
        rows[y][x] = "@"
        legend = {"@": "you", **self.legend}
        return {**info, "view": {"kind": "grid", "rows": list(map("".join, rows)), "legend": legend}}

    def _has_chance(self) -> bool:
        """Whether different seeds can give different episodes."""
        return True

    def _made(self, settings: dict[str, Any]) -> Verbalize:
        # The checker is omitted, because it warns about properties of the environment inside.
        return Verbalize(gym.make(self.bare_id, disable_env_checker=True, **settings), **self._words)


class FrozenLakeEnv(ClassicEnv):
    """Walk to the goal without falling into a hole: 1 for arriving, else 0; at most 100 steps."""

    bare_id = "FrozenLake-v1"
    wording = "FrozenLakeWording"
    legend = {"S": "start", "F": "ice", "H": "hole", "G": "goal"}  # noqa: RUF012 - as in the base class

    def __init__(
        self, *, map_name: str = "4x4", size: int = 4, is_slippery: bool = False, **settings: Any
    ) -> None:
        """Create the lake.

        Args:
            map_name: `4x4`, `8x8`, or `random`: each seed draws a different lake, with a way to the goal.
            size: Cells per side of a random lake, from 2 to 20.
            is_slippery: Whether a step may slide to the side.
            settings: As for `ClassicEnv`, plus `success_rate` and `reward_schedule` of Gymnasium's
                FrozenLake.

        Raises:
            InvalidRequestError: The map does not exist, or the size is out of range.
        """
        known = [*MAPS, "random"]
        if map_name not in known:
            raise InvalidRequestError(f"{map_name!r} is not a map; choose from {known}", field="map_name")
        if not 2 <= size <= 20:
            raise InvalidRequestError(f"must be from 2 to 20, not {size!r}", field="size")
        self._size = size
        self._random = map_name == "random"
        chosen = {"desc": generate_random_map(size, seed=0)} if self._random else {"map_name": map_name}
        super().__init__(**chosen, is_slippery=is_slippery, **settings)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode, on a new lake if it is random."""
        if self._random:
            gym.Env.reset(self, seed=seed)
            lake = generate_random_map(self._size, seed=int(self.np_random.integers(2**31)))
            self._env = self._made({**self._settings, "desc": lake})
            # Without a seed the new lake would use the operating system's randomness.
            observation, info = self._env.reset(
                seed=int(self.np_random.integers(2**31)) if seed is None else seed, options=options
            )
            return observation, self._shown(info)
        return super().reset(seed=seed, options=options)

    def rows(self) -> list[list[str]]:
        """Return the lake."""
        return [[cell.decode() for cell in row] for row in self._env.unwrapped.desc]  # type: ignore[attr-defined] # as above

    def _has_chance(self) -> bool:
        return self._random or bool(self._settings["is_slippery"])


class TaxiEnv(ClassicEnv):
    """Fetch and deliver a passenger: 20 for arriving, -1 per step, -10 for a wrong pickup or dropoff."""

    bare_id = "Taxi-v4"
    wording = "TaxiWording"
    # Every step costs, so an end by illegal actions would be a way out; a random action is not.
    on_illegal = "random"


class CliffWalkingEnv(ClassicEnv):
    """Walk along a cliff: -1 per step, -100 and back to the start for a fall; at most 100 steps."""

    bare_id = "CliffWalking-v1"
    wording = "CliffWalkingWording"
    legend = {"C": "cliff", "G": "goal"}  # noqa: RUF012 - as in the base class
    on_illegal = "random"  # as in the taxi environment

    def __init__(self, *, max_episode_steps: int = 100, **settings: Any) -> None:
        """Set the limit, which Gymnasium's environment lacks.

        Args:
            max_episode_steps: Steps until the walk is truncated.
            settings: As for `ClassicEnv`, plus `is_slippery` of Gymnasium's CliffWalking.
        """
        super().__init__(max_episode_steps=max_episode_steps, **settings)

    def rows(self) -> list[list[str]]:
        """Return the cliff."""
        return [list("." * 12) for _ in range(3)] + [list(".CCCCCCCCCCG")]

    def _has_chance(self) -> bool:
        return bool(self._settings.get("is_slippery"))


class BlackjackEnv(ClassicEnv):
    """One hand against the dealer: 1 for a win, 0 for a draw, -1 for a loss."""

    bare_id = "Blackjack-v1"
    wording = "BlackjackWording"
    lose_reward = -1.0


class CartPoleEnv(ClassicEnv):
    """Keep the pole up: 1 per step; at most 500 steps."""

    bare_id = "CartPole-v1"
    wording = "CartPoleWording"
