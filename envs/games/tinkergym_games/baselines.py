"""Results of simple players: `python -m tinkergym_games.baselines` prints the README's table."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import numpy as np

from tinkergym.games.against_opponent import AgainstOpponent
from tinkergym.registration.environments import make

CASES: tuple[tuple[str, dict[str, str]], ...] = (
    ("games/GuessNumber-v0", {}),
    ("games/NimVs-v0", {"opponent": "random"}),
    ("games/NimVs-v0", {"opponent": "perfect"}),
    ("games/RockPaperScissorsVs-v0", {"opponent": "random"}),
    ("games/RockPaperScissorsVs-v0", {"opponent": "copycat"}),
)


def returns(env: AgainstOpponent, player: str, seeds: Iterable[int]) -> list[float]:
    """Play one episode per seed, with random legal or gold moves, and return their rewards."""
    earned = []
    for seed in seeds:
        # Not the seed alone: the environment draws from that, and opponent and player would make the same
        # choices.
        rng = np.random.default_rng([seed, 1])
        env.reset(seed=seed)
        over, total = False, 0.0
        while not over:
            legal = env.legal_actions() or []
            action = env.gold_action() if player == "gold" else legal[int(rng.integers(len(legal)))]
            _, reward, over, _, _ = env.step(action or "")
            total += reward
        earned.append(total)
    return earned


def main() -> None:
    """Print the mean return with its 95 % interval for each pairing."""
    parser = argparse.ArgumentParser(description="Measure the baselines of the games pack.")
    parser.add_argument("--seeds", type=int, default=1000, help="play seeds 0 to this, exclusive")
    count = parser.parse_args().seeds
    print("| environment | opponent | player | mean return |")
    print("|---|---|---|---|")
    for env_id, kwargs in CASES:
        env = make(env_id, **kwargs).unwrapped
        assert isinstance(env, AgainstOpponent)
        for player in ("random", "gold"):
            if player == "gold" and "Rock" in env_id:
                continue  # the best move against an unknown opponent is not known
            earned = np.array(returns(env, player, range(count)))
            half = 1.96 * earned.std(ddof=1) / count**0.5
            print(
                f"| {env_id} | {kwargs.get('opponent', '')} | {player} | {earned.mean():.3f} ± {half:.3f} |"
            )


if __name__ == "__main__":
    main()
