"""Sampled tokens per second of the transformers engine against a bare batched loop over `past_key_values`.

Both get the same model, adapter and token counts. The bare loop is what one would write for sequences that
stay in lockstep: it shares nothing between the members of a group, needs no padding because all lengths are
equal, and does no bookkeeping. The engine gets one request per turn, like from an agent loop.
"""

from __future__ import annotations

import queue
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

import backend
from backend.compute.weights import AdapterWeights
from backend.engines.transformers.transformers_engine import TransformersEngine
from benchmarks.common import Figure, write_result
from tinkergym.errors import from_wire
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

NANO = Path(backend.__path__[0]) / "models" / "nano"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Token counts of a measurement."""

    name: str
    groups: int
    group_size: int
    turns: int
    prompt_tokens: int
    delta_tokens: int
    """Tokens that the environment adds between two answers."""
    answer_tokens: int

    @property
    def episodes(self) -> int:
        """Number of sequences."""
        return self.groups * self.group_size

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled per run."""
        return self.episodes * self.turns * self.answer_tokens


WORKLOADS = (
    Workload(
        name="128 episodes of 5 short turns",
        groups=16,
        group_size=8,
        turns=5,
        prompt_tokens=40,
        delta_tokens=25,
        answer_tokens=3,
    ),
    Workload(
        name="64 answers of 32 tokens",
        groups=8,
        group_size=8,
        turns=1,
        prompt_tokens=17,
        delta_tokens=0,
        answer_tokens=32,
    ),
)


def measure(runs: int = 7, model_directory: Path = NANO) -> list[Figure]:
    """Run both alternately, `runs` times after a warm-up, and compare the medians."""
    model = AutoModelForCausalLM.from_pretrained(model_directory).eval()
    weights = random_adapter(model, seed=0)
    engine = TransformersEngine(model_directory)
    engine.publish("bench", 0, weights)
    _merge(model, weights)
    figures, details = [], {}
    for workload in WORKLOADS:
        bare_seconds, engine_seconds, publish_seconds = [], [], []
        for run in range(runs + 1):
            start = time.perf_counter()
            # A new version each time, so that the last run's cache cannot help.
            engine.publish("bench", run + 1, weights)
            published = time.perf_counter()
            run_engine(engine, workload, version=run + 1)
            sampled = time.perf_counter()
            run_bare(model, workload)
            if run:
                publish_seconds.append(published - start)
                engine_seconds.append(sampled - published)
                bare_seconds.append(time.perf_counter() - sampled)
        bare = workload.sampled_tokens / statistics.median(bare_seconds)
        ours = workload.sampled_tokens / statistics.median(engine_seconds)
        figures.append(
            Figure(
                what=f"engine against a bare loop, {workload.name}",
                asked=">= 0.9 x",
                measured=f"{ours / bare:.2f} x ({ours:,.0f} against {bare:,.0f} sampled tokens/s)",
                reached=ours >= 0.9 * bare,
            )
        )
        details[workload.name] = {
            "bare_seconds": bare_seconds,
            "engine_seconds": engine_seconds,
            "publish_seconds": publish_seconds,
            "sampled_tokens": workload.sampled_tokens,
        }
    engine.close()
    return write_result("bench_engine", figures, {"threads": torch.get_num_threads(), "workloads": details})


def run_engine(engine: TransformersEngine, workload: Workload, *, version: int) -> None:
    """Play all episodes through the engine, each turn as soon as the previous one is answered."""
    prompts, deltas = _texts(workload)
    history = [list(prompts[episode // workload.group_size]) for episode in range(workload.episodes)]
    turns = [0] * workload.episodes
    answered: queue.SimpleQueue[Sequence[Completion | SampleFailure]] = queue.SimpleQueue()

    def request(episode: int) -> SampleRequest:
        return SampleRequest(
            request_id=str(episode),
            policy="bench",
            policy_version=version,
            prompt_ids=history[episode],
            max_tokens=workload.answer_tokens,
            seed=episode,
            session_id=f"{version}-{episode}",
        )

    engine.submit([request(episode) for episode in range(workload.episodes)], answered.put)
    playing = workload.episodes
    while playing:
        onward = []
        for answer in answered.get():
            if not isinstance(answer, Completion):
                raise from_wire(answer.error.model_dump())
            episode = int(answer.request_id)
            turns[episode] += 1
            if turns[episode] == workload.turns:
                playing -= 1
                continue
            history[episode] += answer.token_ids + deltas[turns[episode] - 1][episode]
            onward.append(request(episode))
        if onward:
            engine.submit(onward, answered.put)


@torch.inference_mode()
def run_bare(model: Any, workload: Workload) -> None:
    """Sample the same number of tokens in lockstep, without an engine."""
    prompts, deltas = _texts(workload)
    cache = DynamicCache(config=model.config)
    new = torch.tensor([prompts[episode // workload.group_size] for episode in range(workload.episodes)])
    for turn in range(workload.turns):
        for _ in range(workload.answer_tokens):
            output = model(new, past_key_values=cache, use_cache=True, logits_to_keep=1)
            logprobs = torch.log_softmax(output.logits[:, -1].float(), dim=-1)
            new = torch.multinomial(logprobs.exp(), 1)
            new.tolist(), logprobs.gather(1, new).tolist()
        if turn + 1 < workload.turns:
            new = torch.cat([new, torch.tensor(deltas[turn])], dim=1)


def random_adapter(model: Any, *, seed: int, rank: int = 8) -> AdapterWeights:
    """A small random adapter on every linear layer of the decoder."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and path != "lm_head":
            key = f"base_model.model.{path}.lora_"
            tensors[f"{key}A.weight"] = torch.randn(rank, module.in_features, generator=generator) * 0.02
            tensors[f"{key}B.weight"] = torch.randn(module.out_features, rank, generator=generator) * 0.02
    return AdapterWeights(rank=rank, alpha=2.0 * rank, tensors=tensors)


@torch.no_grad()
def _merge(model: Any, weights: AdapterWeights) -> None:
    # The bare loop must not pay for the adapter either.
    for path, module in model.named_modules():
        key = f"base_model.model.{path}.lora_"
        if f"{key}A.weight" in weights.tensors:
            up, down = weights.tensors[f"{key}B.weight"], weights.tensors[f"{key}A.weight"]
            module.weight += weights.scaling * up @ down


def _texts(workload: Workload) -> tuple[list[list[int]], list[list[list[int]]]]:
    # Ordinary token ids; their values do not affect the speed.
    draw = random.Random(0)
    prompts = [
        [draw.randrange(300, 1000) for _ in range(workload.prompt_tokens)] for _ in range(workload.groups)
    ]
    deltas = [
        [[draw.randrange(300, 1000) for _ in range(workload.delta_tokens)] for _ in range(workload.episodes)]
        for _ in range(workload.turns - 1)
    ]
    return prompts, deltas


if __name__ == "__main__":
    for figure in measure():
        print(f"{figure.what}: {figure.measured}")
