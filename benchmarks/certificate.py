"""The cost of a run's certificate during training, and its size: tic-tac-toe, 128 episodes per step.

Counted is what stands in steps as `time/certificate`, in seconds of the processor: digests of completions as
they leave the engine and as they are handed in, digests of what is trained on, every episode's fate, and the
comparison of the first adapter with none. The hash of each stored episode and the writing of facts happen
inside transactions that a step has anyway; they are measured apart, on the same episodes.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
import zlib
from pathlib import Path

import tinkergym as tg
from benchmarks.common import Figure, service, write_result
from tinkergym.certificates import verify

ENVIRONMENT = "board/TicTacToeVs-v0"
STEPS = 10
GOAL = 0.01


def measure() -> list[Figure]:
    """Train once, and relate the certificate's seconds to the steps'."""
    with (
        service(None, 'preload=["nano"]') as running,
        tg.Client(running.url, running.api_key) as client,
        tempfile.TemporaryDirectory() as scratch,
    ):
        job = client.train(
            ENVIRONMENT,
            steps=STEPS,
            algorithm=tg.GRPO(group_size=8, groups_per_step=16, learning_rate=2e-3),
        )
        job.wait(progress=False, warn=False)
        steps = job.steps()
        spent = [step.metrics.get("time/certificate", 0.0) for step in steps]
        taken = [step.step_seconds for step in steps]
        records = list(job._api.stored_episodes(job.id))
        facts = job.certificate(Path(scratch)).certificate.facts
        ledgers = list(job._api.ledger(job.id))
        begun = time.perf_counter()
        packed = job.certificate(Path(scratch), bundle=True)
        bundling = time.perf_counter() - begun
        assert packed.bundle is not None
        begun = time.perf_counter()
        verified = verify(packed.bundle)
        verifying = time.perf_counter() - begun
        size = packed.bundle.stat().st_size
    apart = _hashing(records) + _writing(ledgers)
    share, per_step = (sum(spent) + apart) / sum(taken), sum(taken) / len(taken)
    figures = [
        Figure(
            what="a certificate's seconds over step time (tic-tac-toe, 128 episodes per step)",
            asked=f"<= {GOAL:.0%}",
            measured=f"{share:.2%} ({1000 * per_step * share:.1f} ms of {per_step:.2f} s)",
            reached=share <= GOAL,
            margin=GOAL / share,
        ),
        Figure(
            what="its bundle is verified with everything in it",
            asked="nothing is wrong",
            measured=f"{len(verified.problems)} problems in {len(records)} episodes, {size / 2**20:.1f} MiB, "
            f"{verifying:.1f} s",
            reached=verified.ok,
        ),
    ]
    details = {
        "certificate_seconds": spent,
        "hashing_and_writing_seconds": apart,
        "step_seconds": taken,
        "bundling_seconds": bundling,
        "verifying_seconds": verifying,
        "bundle_bytes": size,
        "checks": {check.name: check.verdict for check in verified.certificate.checks},
        "steps_with_facts": len(facts.steps),
    }
    return write_result("certificate", figures, details)


def _hashing(records: list[bytes]) -> float:
    begun = time.perf_counter()
    for record in records:
        hashlib.sha256(record)
    return time.perf_counter() - begun


def _writing(ledgers: list[bytes]) -> float:
    begun = time.perf_counter()
    for ledger in ledgers:
        zlib.compress(ledger, 1)
    return time.perf_counter() - begun
