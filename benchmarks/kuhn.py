"""Self-play Kuhn poker from random legal play: the exact exploitability over the steps.

Of the newest version, which is the figure, and of the average strategy of all versions, which is what theory
promises for self-play.
"""

from __future__ import annotations

import os

from tinkergym_tabletop.lineups import exploitability_of_job

import tinkergym as tg
from benchmarks.common import Figure, service, write_result
from benchmarks.multi_agent import WHOLE, followed, warmed_up
from tinkergym.opponents import League

GAME = "tabletop/KuhnPoker-v0"
STEPS = int(os.environ.get("TINKERGYM_BENCHMARK_STEPS", "200"))
ONLY_ITSELF = League(anchors=[], anchor_share=0, current_share=1)
"""Against a player that moves randomly every bet pays, so an anchor leads away from the equilibrium."""
# The penalty for leaving the start, which moves randomly, is large on purpose: it pulls each decision toward
# a mixed one, as regularized self-play needs to converge (magnetic mirror descent, arXiv:2206.05825). Without
# it every decision was pure within ten steps, and what is never tried is never learned again. An entropy
# bonus would pull toward illegal moves as well.
ALGORITHM = tg.algorithms.DrGRPO(
    group_size=16,
    groups_per_step=32,
    learning_rate=2e-4,
    lr_schedule="linear",
    kl_coefficient=0.3,
    kl_estimator="k1",
    kl_in="reward",
)


def measure() -> list[Figure]:
    """Train once; the figure is the exact exploitability of the policy at temperature 1."""
    with service() as running:
        client = tg.Client(running.url, running.api_key)
        begun = warmed_up(client, GAME)
        job = client.train(
            GAME,
            steps=STEPS,
            self_play=ONLY_ITSELF,
            adapter=WHOLE,
            initial_policy=begun.id,
            algorithm=ALGORITHM,
            sampling=tg.Sampling(max_turn_tokens=8),
            checkpoint_every=10,
            keep_checkpoints=1000,
        )
        _, seconds = followed(job)
        found = exploitability_of_job(client, job.id)
        client.close()
    versions = [one.step for one in found.over_time()]
    curve = [one.found.exploitability for one in found.over_time()]
    averages = list(found.averages.values())
    figure = Figure(
        what=f"self-play Kuhn poker, {STEPS} steps, exact exploitability in chips per game",
        asked="below half of the start's",
        measured=f"{curve[0]:.3f} -> {curve[-1]:.3f}, average of the versions {averages[-1]:.3f}, "
        f"in {seconds:.0f} s",
        reached=curve[-1] < curve[0] / 2,
    )
    legal = [round(one.legal_share or 0.0, 3) for one in found.over_time()]
    details = {"versions": versions, "exploitability": curve, "average_strategy": averages}
    return write_result("kuhn", [figure], {**details, "legal_share": legal, "seconds": seconds})
