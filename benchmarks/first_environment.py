"""First environments of newcomers: what `nano-instruct` learns in them within 30 training steps.

Environments as a newcomer writes them, played in the script and evaluated at temperature 1, before and after,
on held-out seeds.
"""

from __future__ import annotations

import time
from typing import Any

import tinkergym as tg
from benchmarks.common import Figure, service, write_result
from benchmarks.learning import HELD_OUT_SEED
from tinkergym.schema.events import StepEvent

STEPS, EPISODES = 30, 200
SETTINGS: dict[str, Any] = {
    "model": "nano-instruct",
    "algorithm": tg.GRPO(group_size=8, groups_per_step=8, learning_rate=3e-3),
    "sampling": tg.Sampling(max_turn_tokens=32),
}


class Blue(tg.SingleTurnEnv):
    """Earn 1 for a sentence about an animal that is blue."""

    def ask(self, options: dict[str, Any]) -> str:
        """Ask for a sentence."""
        self.animal = str(self.np_random.choice(["cat", "dog", "bird", "fish", "horse"]))
        return f"Write a sentence about a {self.animal}."

    def score(self, answer: str) -> float:
        """Look for both words."""
        return float("blue" in answer and self.animal in answer)


class Polite(tg.SingleTurnEnv):
    """Earn 1 for asking for something with "please"."""

    def ask(self, options: dict[str, Any]) -> str:
        """Name an object."""
        self.thing = str(self.np_random.choice(["ball", "book", "key", "lamp", "cup"]))
        return f"You want the {self.thing}. What do you say?"

    def score(self, answer: str) -> float:
        """Look for the object and the word, and reward a question mark."""
        return 0.5 * (self.thing in answer and "please" in answer) + 0.5 * answer.endswith("?")


class Treasure(tg.TextEnv):
    """Find the room with the coin; every room names the right direction among other commands."""

    def start(self, options: dict[str, Any]) -> str:
        """Begin in the first room."""
        self.rooms_left = 3
        return self._room()

    def reply(self, action: str) -> tuple[str, float, bool]:
        """Continue if the direction was right; a wrong one ends the game."""
        if action.strip() != "open door":
            return "The game is over.", 0.0, True
        self.rooms_left -= 1
        return self._room(), 1 / 3, self.rooms_left == 0

    def _room(self) -> str:
        commands = ["open door", "take ball", "read book", "go north"]
        self.np_random.shuffle(commands)
        return f"You see a door, a ball and a book.\nCommands: {', '.join(commands)}"


def measure() -> list[Figure]:
    """Train once in each environment."""
    figures, details = [], {}
    with service() as running, tg.Client(running.url, running.api_key) as client:
        for kind in (Blue, Polite, Treasure):
            started = time.perf_counter()
            job = client.train(kind, steps=STEPS, **SETTINGS)
            curve = [event.body.reward_mean for event in job.events() if isinstance(event.body, StepEvent)]
            seconds = time.perf_counter() - started
            job.wait()
            before, after = (
                tg.evaluate(
                    job.policy(version=version), kind, episodes=EPISODES, seed=HELD_OUT_SEED, temperature=1.0
                )
                for version in (0, None)
            )
            details[kind.__name__] = {
                "seconds": seconds,
                "before": before.summary(),
                "after": after.summary(),
                "reward_curve": [round(reward, 4) for reward in curve if reward is not None],
            }
            figures.append(
                Figure(
                    what=f"first environment {kind.__name__!r}, {STEPS} steps, {EPISODES} held-out episodes",
                    asked="reward up, intervals apart",
                    measured=f"{before.mean:.2f} [{before.low:.2f}, {before.high:.2f}] -> "
                    f"{after.mean:.2f} [{after.low:.2f}, {after.high:.2f}] in {seconds:.0f} s",
                    reached=after.low > before.high,
                )
            )
    return write_result("first_environment", figures, details)
