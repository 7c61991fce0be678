"""Results of simple players: `python -m tinkergym_board.baselines` prints the README's table."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import numpy as np

from tinkergym.games.against_opponent import AgainstOpponent
from tinkergym.registration.environments import make
from tinkergym_board.players import Player, heuristic_player, perfect_player, random_player
from tinkergym_board.text import cell_names, read_position

PLAYERS: dict[str, Player] = {
    "random": random_player,
    "heuristic": heuristic_player,
    "perfect": perfect_player,
}


def returns(env: AgainstOpponent, player: Player, seeds: Iterable[int]) -> list[float]:
    """Play one episode per seed and return their rewards. The player sees the text, like a policy."""
    rules = env.game.rules
    names, earned = cell_names(rules.size), []
    for seed in seeds:
        # Not the seed alone: the environment draws from that, and opponent and player would make the same
        # choices.
        rng = np.random.default_rng([seed, 1])
        observation, _ = env.reset(seed=seed)
        ended, total = False, 0.0
        while not ended:
            move = names[player(read_position(observation, rules), rng)]
            observation, reward, ended, _, _ = env.step(move)
            total += reward
        earned.append(total)
    return earned


def main() -> None:
    """Print the shares of wins, draws and losses, and the mean return with its 95 % interval, per pairing."""
    parser = argparse.ArgumentParser(description="Measure the baselines of the board pack.")
    parser.add_argument("--seeds", type=int, default=1000, help="play seeds 0 to this, exclusive")
    count = parser.parse_args().seeds
    print("| environment | opponent | player | won | drawn | lost | mean return |")
    print("|---|---|---|---|---|---|---|")
    for env_id in ("board/TicTacToeVs-v0", "board/GomokuVs-v0"):
        for opponent in ("random", "heuristic"):
            env = make(env_id, opponent=opponent).unwrapped
            assert isinstance(env, AgainstOpponent)
            for name, player in PLAYERS.items():
                if name == "perfect" and "TicTacToe" not in env_id:
                    continue  # its search would take forever on 25 cells
                earned = np.array(returns(env, player, range(count)))
                half = 1.96 * earned.std(ddof=1) / count**0.5
                shares = " | ".join(f"{(earned == value).mean():.3f}" for value in (1.0, 0.0, -1.0))
                print(f"| {env_id} | {opponent} | {name} | {shares} | {earned.mean():.3f} ± {half:.3f} |")


if __name__ == "__main__":
    main()
