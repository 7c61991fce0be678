"""Mean returns of simple policies: `python -m tinkergym_bandit.baselines` prints the README's table.

The values are exact: every set of offered arms is evaluated.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import fmean

from tinkergym_bandit.machine import payouts

Choice = Callable[[Sequence[float]], float]
"""Maps the offered arms' payouts to the expected payout of the choice."""


def one_word(offered: Sequence[float]) -> float:
    """Name the machine's best arm if it is offered, else any, like a policy that learned one word."""
    best = max(payouts(0).values())
    return best if best in offered else fmean(offered)


CHOICES: dict[str, Choice] = {"random": fmean, "one word": one_word, "perfect": max}


def expected_return(choice: Choice, offered: int) -> float:
    """Return the mean return over all sets of this many arms; it is the same for every machine."""
    sets = combinations(payouts(0).values(), offered)
    return fmean(choice(arms) for arms in sets)


def main() -> None:
    """Print the mean return of each choice."""
    parser = argparse.ArgumentParser(description="Work out the baselines of the bandit pack.")
    parser.add_argument("--offered", type=int, default=4, help="arms per episode")
    offered = parser.parse_args().offered
    print("| policy | mean return |\n|---|---|")
    for name, choice in CHOICES.items():
        print(f"| {name} | {expected_return(choice, offered):.3f} |")


if __name__ == "__main__":
    main()
