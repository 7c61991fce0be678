"""Arithmetic from a data set: trained on one split, measured on the other. Needs `tinkergym serve`."""

import tinkergym as tg
from tinkergym.display.progress import TrainingDisplay
from tinkergym.reporting import report

ENV = "math/Arithmetic-v0"

job = tg.Client().train(
    ENV,
    model="nano",
    env_kwargs={"split": "train"},
    algorithm=tg.GRPO(group_size=8, groups_per_step=16, learning_rate=2e-3),
    adapter=tg.LoRA(rank=8),
    sampling=tg.Sampling(max_turn_tokens=16),
    steps=100,
)
with TrainingDisplay(job.id, job.spec) as display:
    display.watch(job.events())
job.wait()

# At temperature 1, as it was trained: it learns to be surer of answers that mostly are the likeliest already.
settings = {"episodes": 200, "seed": 0, "temperature": 1.0, "env_kwargs": {"split": "test"}}
before = job.policy(version=0).evaluate(ENV, **settings)
after = job.policy().evaluate(ENV, **settings)
report.show(job, before, after, picture=f"runs/{job.id}-reward.png")
