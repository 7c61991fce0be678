"""Self-play Kuhn poker from random legal play: the exact exploitability before and after."""

from __future__ import annotations

import os

import tinkergym as tg
from benchmarks.common import Figure, service, write_result
from benchmarks.multi_agent import WHOLE, followed, warmed_up
from tinkergym.evaluation.exploitability import GameTree
from tinkergym.evaluation.policy_strategy import policy_strategy

GAME = "tabletop/KuhnPoker-v0"
STEPS = int(os.environ.get("TINKERGYM_BENCHMARK_STEPS", "150"))


def measure() -> list[Figure]:
    """Train once; the figure is the exact exploitability of the policy at temperature 1."""
    tree = GameTree(tg.make_game(GAME))
    with service() as running:
        client = tg.Client(running.url, running.api_key)
        begun = warmed_up(client, GAME)
        job = client.train(
            GAME,
            steps=STEPS,
            self_play=True,
            adapter=WHOLE,
            initial_policy=begun.id,
            # Slowly, and kept mixed: in poker a best answer to the present opponent is a pure strategy, which
            # the next opponent exploits.
            algorithm=tg.algorithms.DrGRPO(
                group_size=16,
                groups_per_step=16,
                learning_rate=5e-5,
                lr_schedule="linear",
                entropy_coefficient=0.1,
            ),
            sampling=tg.Sampling(max_turn_tokens=8),
            checkpoint_every=10,
            keep_checkpoints=1000,
        )
        _, seconds = followed(job)
        kept = [view.policy_version for view in job.checkpoints()]
        policies = [begun.policy(), *(job.policy(version=version) for version in kept)]
        strategies = [policy_strategy(policy, tree.situations) for policy in policies]
        curve = [tree.exploitability(strategy).exploitability for strategy in strategies]
        versions, legal = [0, *kept], [round(strategy.mean_legal_share, 3) for strategy in strategies]
        client.close()
    figure = Figure(
        what=f"self-play Kuhn poker, {STEPS} steps, exact exploitability in chips per game",
        asked="below half of the start's",
        measured=f"{curve[0]:.3f} -> {curve[-1]:.3f}, lowest {min(curve):.3f}, in {seconds:.0f} s",
        reached=curve[-1] < curve[0] / 2,
    )
    details = {"versions": versions, "exploitability": curve, "legal_share": legal, "seconds": seconds}
    write_result("kuhn", [figure], details)
    return [figure]
