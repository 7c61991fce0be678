"""Memory saved and time lost by dividing a full-parameter policy over two ranks instead of copying it.

85 million parameters, so that weights, gradient and optimizer state dominate the process.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from backend.learner.parallel.data_parallel import DataParallelLearner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from benchmarks.common import Figure, write_result
from tinkergym.schema.jobs.parts import FullParameters

RANKS = 2
LAYERS, WIDTH = 12, 768
SEQUENCES, PROMPT, ANSWER = 64, 16, 48
MICRO_BATCH_TOKENS = 1024
STEPS = 4
"""The first is a warm-up; each kind runs in new processes, because a process's peak never decreases."""
ASKED = 0.75
"""Weights, gradient and state are halved; both keep a batch's activations, and need whole layers."""


def measure() -> list[Figure]:
    """Train some steps with the policy copied, then divided; memory is the larger rank's peak."""
    with tempfile.TemporaryDirectory(prefix="tinkergym-bench-") as folder:
        _make_model(Path(folder))
        copied, divided = (_train(Path(folder), divide_from) for divide_from in (10**12, 1))
    ratio = divided["policy_bytes"] / copied["policy_bytes"]
    seconds = [statistics.median(run["step_seconds"][1:]) for run in (divided, copied)]
    figure = Figure(
        what=f"peak memory of a rank beyond an idle one's, full-parameter policy (85 M) divided over {RANKS} "
        "against copied",
        asked=f"<= {ASKED} x",
        measured=f"{ratio:.2f} x ({divided['policy_bytes'] / 2**20:,.0f} against "
        f"{copied['policy_bytes'] / 2**20:,.0f} MiB; {seconds[0]:.1f} against {seconds[1]:.1f} s per step)",
        reached=ratio <= ASKED,
        margin=ASKED / ratio,
    )
    return write_result("divided", [figure], {"divided": divided, "copied": copied})


def _train(model: Path, divide_from: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    batch = [
        TrainSequence(
            token_ids=torch.randint(0, 512, (PROMPT + ANSWER,), generator=generator).tolist(),
            loss_mask=[False] * PROMPT + [True] * ANSWER,
            sampling_logprobs=[None] * PROMPT + [-6.2] * ANSWER,
            advantage=float(number % 4) - 1.5,
        )
        for number in range(SEQUENCES)
    ]
    with DataParallelLearner(
        model, ranks=RANKS, micro_batch_tokens=MICRO_BATCH_TOKENS, divide_from=divide_from
    ) as group:
        idle = _peak_bytes(group)
        group.create_policy("policy", FullParameters(), seed=0)
        seconds, norms = [], []
        for _ in range(STEPS):
            began = time.perf_counter()
            group.forward_backward("policy", batch, policy_loss())
            norms.append(group.optim_step("policy", learning_rate=1e-5).grad_norm)
            seconds.append(time.perf_counter() - began)
        return {
            "idle_bytes": idle,
            "policy_bytes": _peak_bytes(group) - idle,
            "step_seconds": seconds,
            "grad_norms": norms,
        }


def _peak_bytes(group: DataParallelLearner) -> int:
    """Return the maximum memory of any rank so far."""
    return max(_high_water(pid) for pid in group.process_ids)


def _high_water(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _make_model(folder: Path) -> None:
    torch.manual_seed(0)
    Qwen3ForCausalLM(
        Qwen3Config(
            hidden_size=WIDTH,
            intermediate_size=3 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=12,
            num_key_value_heads=4,
            head_dim=64,
            vocab_size=512,
            max_position_embeddings=512,
            tie_word_embeddings=True,
        )
    ).save_pretrained(folder)
