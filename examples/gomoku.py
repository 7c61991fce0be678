"""Gomoku on 5x5, four in a row, against a random opponent. Needs a running service: `tinkergym serve`."""

import tinkergym as tg
from tinkergym.display.progress import TrainingDisplay
from tinkergym.reporting import report

ENV = "board/GomokuVs-v0"
HELD_OUT = 1_000_000

job = tg.Client().train(
    ENV,
    model="nano",
    env_kwargs={"size": 5, "win": 4, "opponent": "random"},
    algorithm=tg.GRPO(group_size=8, groups_per_step=16, learning_rate=2e-3),
    adapter=tg.LoRA(rank=8),
    steps=100,
)
with TrainingDisplay(job.id, job.spec) as display:
    display.watch(job.events())
job.wait()

settings = {"episodes": 200, "seed": HELD_OUT, "env_kwargs": job.spec.environment.kwargs}
before = job.policy(version=0).evaluate(ENV, **settings)
after = job.policy().evaluate(ENV, **settings)
report.show(job, before, after, picture=f"runs/{job.id}-reward.png")
