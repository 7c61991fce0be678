"""A small model learns tic-tac-toe. `make demo` runs it; so does `tinkergym serve`, then this script."""

import tinkergym as tg
from tinkergym.display.progress import TrainingDisplay
from tinkergym.reporting import report

ENV = "board/TicTacToeVs-v0"
HELD_OUT = 1_000_000  # training uses other seeds

client = tg.Client()  # TINKERGYM_URL / TINKERGYM_API_KEY, else a service on this machine
job = client.train(
    ENV,
    model="nano",
    algorithm=tg.GRPO(group_size=8, groups_per_step=16, learning_rate=2e-3),
    adapter=tg.LoRA(rank=8),
    steps=100,
)
with TrainingDisplay(job.id, job.spec) as display:
    for event in job.events():
        display.show(event)
job.wait()  # raises if the job failed, with the reason

before = job.policy(version=0).evaluate(ENV, episodes=200, seed=HELD_OUT)
after = job.policy().evaluate(ENV, episodes=200, seed=HELD_OUT)
report.show(job, before, after, picture=f"runs/{job.id}-reward.png")
