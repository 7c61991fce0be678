"""Several policies in one call of the learner, against one policy that trains on all their sequences.

The learner computes policies one after the other, so that each gets the bits of training alone. One policy
with the same sequences is the lower bound for computing all of them in common rows: the ratio is the cost of
that exactness.
"""

from __future__ import annotations

import time

import torch

from backend.learner.forward_backward import PolicyBatch
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from benchmarks.common import Figure, paired_ratio, write_result
from benchmarks.step_work import model_directory
from tinkergym.schema.jobs.parts import LoRA

RANKS = (2, 4, 8, 16)
SIZES = (4, 16, 64)
"""Sequences of each policy, in groups of 4 that share their prompt."""
PROMPT, ANSWER = 17, 32
ROUNDS = 15
ASKED = 1.25


def measure() -> list[Figure]:
    """Measure both alternately, for small and large batches; the figure is that of the middle size."""
    seconds: dict[str, dict[str, list[float]]] = {}
    with model_directory() as model:
        learner = Learner(model, cpu_threads=torch.get_num_threads())
        for rank in RANKS:
            learner.create_policy(f"rank-{rank}", LoRA(rank=rank), seed=rank)
        for size in SIZES:
            parts = {f"rank-{rank}": _batch(size, seed=rank) for rank in RANKS}
            whole = [sequence for part in parts.values() for sequence in part.sequences]
            alone = {"rank-8": PolicyBatch(sequences=whole, loss=policy_loss())}
            times = seconds[str(size)] = {"several": [], "one": []}
            for number in range(ROUNDS + 1):
                for what, work in (("several", parts), ("one", alone)):
                    began = time.perf_counter()
                    learner.forward_backward_many(work)
                    taken = time.perf_counter() - began
                    for policy in work:
                        learner.optim_step(policy, learning_rate=1e-4)
                    if number:  # the first is a warm-up
                        times[what].append(taken)
    ratios = {size: paired_ratio(times["several"], times["one"]) for size, times in seconds.items()}
    middle = ratios[str(SIZES[1])]
    figure = Figure(
        what=f"{len(RANKS)} policies of ranks {RANKS} in one call, {SIZES[1]} sequences each, "
        "against one policy with all sequences",
        asked=f"<= {ASKED} x the time",
        measured=", ".join(f"{ratio:.2f} x at {size}" for size, ratio in ratios.items()),
        reached=middle <= ASKED,
        margin=ASKED / middle,
    )
    return write_result("many_adapters", [figure], {"seconds": seconds, "threads": torch.get_num_threads()})


def _batch(size: int, *, seed: int) -> PolicyBatch:
    generator = torch.Generator().manual_seed(seed)
    sequences = []
    for number in range(size):
        if number % 4 == 0:
            prompt = torch.randint(0, 256, (PROMPT,), generator=generator).tolist()
        answer = torch.randint(0, 256, (ANSWER,), generator=generator).tolist()
        sequences.append(
            TrainSequence(
                token_ids=[*prompt, *answer],
                loss_mask=[False] * PROMPT + [True] * ANSWER,
                sampling_logprobs=[None] * PROMPT + [-5.5] * ANSWER,
                advantage=float(number % 4) - 1.5,
            )
        )
    return PolicyBatch(sequences=sequences, loss=policy_loss())
