"""The difference between the learner's and the engine's logprobs, in float32 and in bfloat16."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from benchmarks.common import Figure, write_result
from benchmarks.step_work import model_directory
from tinkergym.errors import from_wire
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

UPDATES = 4
LEARNING_RATE = 1e-2
"""Large, so that the adapter matters."""
TEMPERATURES = (0.5, 1.0, 1.5)
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def measure() -> list[Figure]:
    """Sample, compare, update and publish repeatedly; the mean of the worst round counts."""
    figures, details = [], {}
    with model_directory() as model:
        for dtype, bound in BOUNDS.items():
            name = str(dtype).removeprefix("torch.")
            rounds = _rounds(model, dtype)
            worst = max(mean for mean, _ in rounds)
            details[name] = {
                "mean_per_round": [mean for mean, _ in rounds],
                "largest_per_round": [largest for _, largest in rounds],
            }
            figures.append(
                Figure(
                    what=f"learner against engine logprobs, {name}, {UPDATES} updates",
                    asked=f"mean abs difference <= {bound:.0e}",
                    measured=f"{worst:.1e} (largest of one token: {max(top for _, top in rounds):.1e})",
                    reached=worst <= bound,
                    margin=bound / max(worst, 1e-12),
                )
            )
    return write_result("parity", figures, details)


def _rounds(model: Path, dtype: torch.dtype) -> list[tuple[float, float]]:
    engine, learner = TransformersEngine(model, dtype=dtype), Learner(model, dtype=dtype)
    learner.create_policy("bench", LoRA(rank=8), seed=0)
    found = []
    for version in range(UPDATES + 1):
        engine.publish("bench", version, learner.weights("bench"))
        sequences = _sampled(engine, version)
        learned = learner.forward_backward("bench", sequences, policy_loss()).learner_logprobs
        sampled = [
            np.asarray(sequence.sampling_logprobs, dtype=np.float64)[np.asarray(sequence.loss_mask)]
            for sequence in sequences
        ]
        gap = np.abs(np.concatenate(learned) - np.concatenate(sampled))
        found.append((float(gap.mean()), float(gap.max())))
        learner.optim_step("bench", learning_rate=LEARNING_RATE)
    engine.close()
    return found


def _sampled(engine: TransformersEngine, version: int) -> list[TrainSequence]:
    draw = np.random.default_rng(version)
    requests = [
        SampleRequest(
            request_id=str(number),
            policy="bench",
            policy_version=version,
            prompt_ids=draw.integers(3, 800, size=int(draw.integers(5, 60))).tolist(),
            max_tokens=int(draw.integers(8, 48)),
            temperature=TEMPERATURES[number % len(TEMPERATURES)],
            seed=number,
        )
        for number in range(48)
    ]
    arrived: queue.SimpleQueue[Sequence[Completion | SampleFailure]] = queue.SimpleQueue()
    engine.submit(requests, arrived.put)
    answers: dict[str, Completion] = {}
    while len(answers) < len(requests):
        for answer in arrived.get():
            if not isinstance(answer, Completion):
                raise from_wire(answer.error.model_dump())
            answers[answer.request_id] = answer
    sequences = []
    for request in requests:
        answer, before = answers[request.request_id], len(request.prompt_ids)
        sequences.append(
            TrainSequence(
                token_ids=[*request.prompt_ids, *answer.token_ids],
                loss_mask=[False] * before + [True] * len(answer.token_ids),
                sampling_logprobs=[*[None] * before, *answer.sampling_logprobs],
                advantage=float(draw.normal()),
                temperature=request.temperature,
            )
        )
    return sequences
