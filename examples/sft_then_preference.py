"""Written answers, then the better of two: sums, then said more briefly. Needs `tinkergym serve`."""

import tinkergym as tg
from tinkergym.display.progress import TrainingDisplay

SUMS = [(a, b) for a in range(10) for b in range(10)]
client = tg.Client()

written = [{"prompt": f"{a} + {b}?", "completion": f"It is {a + b}."} for a, b in SUMS]
first = client.sft(tg.tasks.SequenceTasks(written), epochs=20, learning_rate=5e-3, held_out=0.1, seed=1)
with TrainingDisplay(first.id, first.spec) as display:
    display.watch(first.events())
first.wait()

pairs = [{"prompt": f"{a} + {b}?", "chosen": f"{a + b}", "rejected": f"It is {a + b}."} for a, b in SUMS]
# ORPO imitates the chosen answer too. With tg.algorithms.DPO, which looks at the margin, so small a model
# says neither.
settings = {"initial_policy": first.id, "epochs": 12, "learning_rate": 2e-3}
job = client.preference(tg.tasks.SequenceTasks(pairs), loss=tg.algorithms.ORPO(), **settings)
with TrainingDisplay(job.id, job.spec) as display:
    display.watch(job.events())
job.wait()

policies = {"model": client.policy(temperature=0), "sft": first.policy(temperature=0)}
for name, policy in {**policies, "orpo": job.policy(temperature=0)}.items():
    policy.max_turn_tokens = 16
    answers = []
    for question in ("2 + 3?", "7 + 8?"):
        policy.reset()
        answers.append(f"{question} {policy.act(question)}")
    print(f"{name:6}", *answers, sep="   ")
print(job.id)
