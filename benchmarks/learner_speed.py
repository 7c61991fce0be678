"""Tokens per second of the learner, against forward and backward of the bare model at its best batch size.

The sequences have nothing in common, so the learner gains nothing from sharing. The bare model comes from
transformers, with PEFT's adapter if an adapter is trained, and a plain loss over the same tokens.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from benchmarks.common import Figure, write_result
from benchmarks.step_work import model_directory
from tinkergym.schema.jobs.parts import FullParameters, LoRA

SEQUENCES = 64
LENGTH = 128
PROMPT = 16
BATCHES = (2, 4, 8, 16, 32, 64)
RUNS = 5
ASKED = 1.2


def measure() -> list[Figure]:
    """Measure both alternately, for an adapter and for all parameters."""
    figures, details = [], {}
    with model_directory() as model:
        for name, adapter in (("LoRA", LoRA(rank=8)), ("full parameters", FullParameters())):
            best, seconds = _alternating(_bare(model, adapter), _learner(model, adapter))
            tokens = SEQUENCES * LENGTH
            rates = {what: tokens / statistics.median(times) for what, times in seconds.items()}
            ratio = rates["learner"] / rates["bare"]
            figures.append(
                Figure(
                    what=f"learner against fwd+bwd of the bare model, {name}",
                    asked=f">= {ASKED} x",
                    measured=f"{ratio:.2f} x ({rates['learner']:,.0f} against {rates['bare']:,.0f} tokens/s)",
                    reached=ratio >= ASKED,
                    margin=ratio / ASKED,
                )
            )
            details[name] = {"best_batch": best, "seconds": seconds, "threads": torch.get_num_threads()}
    return write_result("learner_speed", figures, details)


def _alternating(
    bare: Callable[[int], None], learner: Callable[[], None]
) -> tuple[int, dict[str, list[float]]]:
    """Return the bare model's best batch size, and the seconds of both, measured alternately."""
    best = min(BATCHES, key=lambda batch: min(_seconds(lambda: bare(batch)) for _ in range(2)))
    seconds: dict[str, list[float]] = {"bare": [], "learner": []}
    for run in range(RUNS + 1):
        taken = {"bare": _seconds(lambda: bare(best)), "learner": _seconds(learner)}
        if run:  # the first warms up
            for what, one in taken.items():
                seconds[what].append(one)
    return best, seconds


def _ids() -> torch.Tensor:
    return torch.randint(3, 800, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(0))


def _bare(model_dir: Path, adapter: LoRA | FullParameters) -> Callable[[int], None]:
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    if isinstance(adapter, LoRA):
        config = peft.LoraConfig(
            r=adapter.rank, lora_alpha=adapter.alpha, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(model, config)
    ids = _ids()

    def run(batch: int) -> None:
        for start in range(0, SEQUENCES, batch):
            rows = ids[start : start + batch]
            logits = model(input_ids=rows, use_cache=False, logits_to_keep=LENGTH - PROMPT + 1).logits[:, :-1]
            functional.cross_entropy(logits.flatten(0, 1), rows[:, PROMPT:].flatten()).backward()  # type: ignore[no-untyped-call]
        model.zero_grad()

    return run


def _learner(model_dir: Path, adapter: LoRA | FullParameters) -> Callable[[], None]:
    learner = Learner(model_dir, cpu_threads=torch.get_num_threads())
    learner.create_policy("bench", adapter, seed=0)
    sequences = [
        TrainSequence(
            token_ids=row,
            loss_mask=[False] * PROMPT + [True] * (LENGTH - PROMPT),
            sampling_logprobs=[None] * PROMPT + [-6.9] * (LENGTH - PROMPT),
            advantage=float(np.sign(number % 2 - 0.5)),
        )
        for number, row in enumerate(_ids().tolist())
    ]

    def run() -> None:
        learner.forward_backward("bench", sequences, policy_loss())
        learner.optim_step("bench", learning_rate=1e-6)

    return run


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
