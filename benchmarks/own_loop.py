"""The same GRPO steps as a built-in job and as an own loop on the low-level API, alternating.

One service, one model, the same prompts and settings; the job plays its episodes in this process, where the
loop scores. A step's time is the time between the ends of two steps. The loop is written like
`examples/own_loop.py` and draws with the job's seeds. With `deterministic=True` both must end with the same
adapter, to the byte.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tinkergym as tg
from backend.episodes.episode_requests import environment_seed, sampling_seed
from benchmarks.common import Figure, paired_ratios, service, write_result
from tinkergym.remote.training_policy import TrainingPolicy
from tinkergym.schema.events import StepEvent
from tinkergym.schema.sampling import Completion

GOAL = 1.15
MODEL = "nano-instruct"
GROUPS, GROUP_SIZE, TOKENS, LEARNING_RATE = 4, 8, 32, 3e-3
STEPS, WARM_UP, ROUNDS = 16, 4, 5
EQUAL_STEPS, SEED = 12, 7


class Blue(tg.SingleTurnEnv):
    """Earn 1 for a sentence about an animal that is blue."""

    def ask(self, options: dict[str, Any]) -> str:
        """Ask for a sentence."""
        self.animal = str(self.np_random.choice(["cat", "dog", "bird", "fish", "horse"]))
        return f"Write a sentence about a {self.animal}."

    def score(self, answer: str) -> float:
        """Look for both words."""
        return float("blue" in answer and self.animal in answer)


def measure(rounds: int = ROUNDS, steps: int = STEPS) -> list[Figure]:
    """Time them alternately, and compare the bytes of the results."""
    seconds: dict[str, list[float]] = {"job": [], "loop": []}
    with service(None, f'preload=["{MODEL}"]') as running, tg.Client(running.url, running.api_key) as client:
        for seed in range(rounds):
            seconds["job"].append(_seconds_per_step(_run_job(client, steps=steps, seed=seed).ends))
            seconds["loop"].append(_seconds_per_step(_run_loop(client, steps=steps, seed=seed).ends))
            print({name: round(found[-1], 3) for name, found in seconds.items()}, flush=True)
        equal = {
            "job": _run_job(client, steps=EQUAL_STEPS, seed=SEED, deterministic=True),
            "loop": _run_loop(client, steps=EQUAL_STEPS, seed=SEED, deterministic=True),
        }
    same = equal["job"].sha256 == equal["loop"].sha256
    updates = equal["loop"].updates
    figures = [
        _timed("a user's own loop", seconds["loop"], seconds["job"]),
        Figure(
            what=f"adapter of a user's own loop and of the job, both `deterministic`, {EQUAL_STEPS} steps",
            asked="the same bytes",
            measured=f"{'the same' if same else 'different'} ({updates} steps changed it)",
            reached=same and updates > 0,
        ),
    ]
    hashes = {name: run.sha256 for name, run in equal.items()}
    return write_result("own_loop", figures, {"step_seconds": seconds, "sha256": hashes, "updates": updates})


def _timed(what: str, loop: list[float], job: list[float]) -> Figure:
    ratios = paired_ratios(loop, job)
    ratio = statistics.median(ratios)
    return Figure(
        what=f"{what}, against the built-in job, {GROUPS} x {GROUP_SIZE} completions",
        asked=f"<= {GOAL} x the time",
        measured=f"{ratio:.2f} x (rounds {ratios[0]:.2f} to {ratios[-1]:.2f})",
        reached=ratio <= GOAL,
        margin=GOAL / ratio,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    sha256: str
    """Hash of the last weights."""
    ends: list[float]
    """When each step ended."""
    updates: int
    """Steps that changed the policy."""


def _run_job(client: tg.Client, *, steps: int, seed: int, deterministic: bool = False) -> _Run:
    job = client.train(
        Blue,
        model=MODEL,
        steps=steps,
        seed=seed,
        deterministic=deterministic,
        algorithm=tg.GRPO(group_size=GROUP_SIZE, groups_per_step=GROUPS, learning_rate=LEARNING_RATE),
        sampling=tg.Sampling(max_turn_tokens=TOKENS),
        checkpoint_every=steps,
    )
    records = [(event.time, event.body) for event in job.events() if isinstance(event.body, StepEvent)]
    updates = sum(not body.metrics.get("skipped_updates") for _, body in records)
    return _Run(job.checkpoints()[-1].sha256, [ended for ended, _ in records], updates)


def _run_loop(client: tg.Client, *, steps: int, seed: int, deterministic: bool = False) -> _Run:
    """Do the job's work with calls."""
    ends, updates = [], 0
    with client.create_policy(model=MODEL, seed=seed, checkpoint_every=1000) as policy:
        for step in range(1, steps + 1):
            policy.publish()
            sequences = []
            sampled = _sampled(policy, seed, step, deterministic=deterministic)
            for group, completions in enumerate(sampled):
                sequences += _judged(policy, environment_seed(seed, step, group), completions)
            policy.forward_backward(sequences, "ppo")
            updates += not policy.optim_step(LEARNING_RATE).result().skipped
            ends.append(time.time())
        job_id, _, version = policy.save().result().partition("@")
        sha256 = next(
            one.sha256 for one in client.job(job_id).checkpoints() if one.policy_version == int(version)
        )
        policy.cancel()
    return _Run(sha256, ends, updates)


def _sampled(policy: TrainingPolicy, seed: int, step: int, *, deterministic: bool) -> list[list[Completion]]:
    """Return the completions of each group, drawn with the job's seeds."""
    prompts = [Blue().reset(seed=environment_seed(seed, step, group))[0] for group in range(GROUPS)]
    seeds = [
        sampling_seed(seed, step, group, member) for group in range(GROUPS) for member in range(GROUP_SIZE)
    ]
    return policy.sample_many(
        prompts, n=GROUP_SIZE, max_tokens=TOKENS, seeds=seeds, deterministic=deterministic
    )


def _judged(
    policy: TrainingPolicy, environment_seed: int, completions: list[Completion]
) -> list[dict[str, Any]]:
    """Score a group and compare each completion with the others."""
    env = Blue()
    observation, _ = env.reset(seed=environment_seed)
    prompt = policy.prompt_ids(observation)
    rewards = [env.score(policy.text(completion)) for completion in completions]
    baseline = sum(rewards) / len(rewards)
    return [
        {
            "token_ids": prompt + completion.token_ids,
            "loss_mask": [False] * len(prompt) + [True] * len(completion.token_ids),
            "sampling_logprobs": [None] * len(prompt) + completion.sampling_logprobs,
            "advantage": reward - baseline,
        }
        for completion, reward in zip(completions, rewards, strict=True)
    ]


def _seconds_per_step(ends: list[float]) -> float:
    return statistics.median(after - before for before, after in pairwise(ends[WARM_UP - 1 :]))
