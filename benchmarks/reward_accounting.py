"""1,000 random games of every shipped game: rewards in the seats' records against the rules' payouts."""

from __future__ import annotations

import time

from benchmarks.common import Figure, write_result
from benchmarks.game_accounts import play_accounted
from tinkergym.registration.games import make_game
from tinkergym.registration.packs import registered_games

GAMES = 1000
PACKS = ("board/", "games/", "tabletop/")
RULES = ("lose", "random", "retry:2")


def measure() -> list[Figure]:
    """Play every game for two or more, a third of the seeds under each rule for illegal moves."""
    names = [name for name in registered_games() if name.startswith(PACKS)]
    names = [name for name in names if len(make_game(name).possible_agents) > 1]
    found: dict[str, dict[str, float]] = {}
    for name in names:
        began = time.perf_counter()
        games = [
            game
            for number, rule in enumerate(RULES)
            for game in play_accounted(name, range(number, GAMES, len(RULES)), on_illegal=rule)
        ]
        found[name] = {
            "games": len(games),
            "differ": sum(not game.agrees for game in games),
            "not_terminated": sum(game.stop_reason != "terminated" for game in games),
            "seconds": round(time.perf_counter() - began, 2),
        }
        print(name, found[name], flush=True)
    differ = int(sum(one["differ"] for one in found.values()))
    figure = Figure(
        what=f"reward accounting, {GAMES:,} random games of each of {len(names)} games",
        asked="the sum per seat equals the game's own account, exactly",
        measured=f"{differ} differ",
        reached=differ == 0 and all(one["games"] == GAMES for one in found.values()),
    )
    return write_result("reward_accounting", [figure], {"games": found})
