"""Images: learner against engine, what is sent for a group, and the cost of images per step.

In one process, on `nano-vl` and the pictures of `geometry/Area-v0`; bytes are counted with a service.
vLLM is compared where it is installed.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tinkergym_geometry.area import AreaEnv

import tinkergym as tg
from backend.catalog.models import load_renderer_bundle
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.engines.vllm.vllm_engine import VllmEngine
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from backend.settings.served_models import PACKAGED_MODELS
from backend.vision.pixels import ImageReader
from backend.vision.shared_caches import SharedImages
from backend.vision.tower import ImageTower
from benchmarks.common import Figure, service, write_result
from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.images.stored_images import alive
from tinkergym.remote.transport import Connection
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import Adapter
from tinkergym.schema.sampling import SampleFailure

MODEL = Path(PACKAGED_MODELS["nano-vl"])
UPDATES, EPISODES, GROUP = 4, 64, 8
ADAPTERS: dict[str, Adapter] = {
    "LoRA": tg.LoRA(),
    "LoRA(vision=True)": tg.LoRA(vision=True),
    "FullParameters": tg.FullParameters(),
}


class Area(AreaEnv):
    """The environment as a client's own class."""


class _Files:
    """The images shown so far; implements `ImageSource`."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def read(self, sha256: str) -> bytes:
        return self.data[sha256]


class _Player:
    """Plays steps in this process."""

    def __init__(self, engine: str) -> None:
        self.files = _Files()
        self.renderer = Renderer.from_bundle(load_renderer_bundle("nano-vl", MODEL))
        # As in a pool, where engine and learner share image caches.
        images = SharedImages(self.files)
        make: Any = VllmEngine if engine == "vLLM" else TransformersEngine
        self.engine = make(MODEL, images=images)
        self.learner = Learner(MODEL, images=images, cpu_threads=torch.get_num_threads())

    def step(self, policy: str, number: int, group: int) -> float:
        """Play, train and publish; return the mean difference of logprobs, in nats."""
        played = []
        for index in range(EPISODES):
            seed = number * EPISODES + index // group
            plan = EpisodePlan(
                episode_id=f"{number}-{index}",
                seed=seed,
                policy=policy,
                decoding=Decoding(max_turn_tokens=6, seed=number * EPISODES + index),
            )
            loop, env = AgentLoop(self.renderer, plan), AreaEnv()
            request = loop.begin(*env.reset(seed=seed))
            assert request is not None
            for image in request.images:
                file = alive(image.sha256)
                assert file is not None
                self.files.data[image.sha256] = file.data
            played.append((loop, env, request))
        answers = self.engine.generate_together([request for _, _, request in played])
        sequences, sampled = [], []
        for (loop, env, _), answer in zip(played, answers, strict=True):
            assert not isinstance(answer, SampleFailure), answer.error
            loop.stepped(*env.step(loop.receive(answer)))
            (segment,) = loop.trajectory().segments
            advantage = 1.0 if len(sequences) % 2 else -1.0
            sequences.append(TrainSequence.from_segment(segment, advantage=advantage))
            sampled.append(np.asarray(answer.sampling_logprobs))
        learned = self.learner.forward_backward(policy, sequences, policy_loss()).learner_logprobs
        self.learner.optim_step(policy, learning_rate=2e-3)
        self.engine.publish(policy, number + 1, self.learner.weights(policy))
        return float(np.abs(np.concatenate(learned) - np.concatenate(sampled)).mean())

    def begin(self, policy: str, adapter: Adapter) -> None:
        self.learner.create_policy(policy, adapter, seed=0)
        self.engine.publish(policy, 0, self.learner.weights(policy))


def measure() -> list[Figure]:
    """Measure everything."""
    player = _Player("transformers")
    drifts = _drifts(player, "transformers")
    share, seconds = _share(player)
    player.engine.close()
    if importlib.util.find_spec("vllm"):
        with_vllm = _Player("vLLM")
        drifts |= _drifts(with_vllm, "vLLM")
        with_vllm.engine.close()
    sent = _sent()
    figures = [
        Figure(
            what=f"learner against engine logprobs with images, {name}, {UPDATES} updates",
            asked="mean abs difference <= 1e-05",
            measured=f"{drift:.1e}",
            reached=drift <= 1e-5,
        )
        for name, drift in drifts.items()
    ]
    figures += [
        Figure(
            what=f"files sent of {sent['images']} images, {sent['shown']} episodes in groups of {GROUP}",
            asked="each once",
            measured=f"{sent['sent']} files, {sent['bytes']} bytes",
            reached=sent["sent"] == sent["images"],
        ),
        Figure(
            what=f"share of a step spent on images, {EPISODES} episodes with one of their own each",
            asked="<= 15 %",
            measured=f"{100 * share:.1f} %",
            reached=share <= 0.15,
            margin=0.15 / share,
        ),
    ]
    return write_result("images", figures, {"drifts": drifts, "sent": sent, "seconds": seconds})


def _drifts(player: _Player, engine: str) -> dict[str, float]:
    """Train a policy of each kind; return how far learner and engine are apart at last, in nats."""
    found = {}
    for name, adapter in ADAPTERS.items():
        player.begin(name, adapter)
        steps = [player.step(name, number, GROUP) for number in range(UPDATES + 1)]
        found[f"{name}, {engine}"] = steps[-1]
    return found


def _share(player: _Player) -> tuple[float, dict[str, float]]:
    """Return the fraction of a step's time in which engine and learner read and process images."""
    policy = "LoRA"
    player.step(policy, 50, 1)
    clock = _Clock()
    with clock.timed(ImageReader, "image"), clock.timed(ImageTower, "features"):
        begin = time.perf_counter()
        for number in (51, 52, 53):
            player.step(policy, number, 1)
        whole = time.perf_counter() - begin
    return clock.seconds / whole, {"images": clock.seconds, "steps": whole}


class _Clock:
    """Measures the time in some methods; nested calls count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = 0

    @contextmanager
    def timed(self, kind: Any, name: str) -> Iterator[None]:
        method = getattr(kind, name)

        def timed(*arguments: Any) -> Any:
            self._inside += 1
            begin = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                self._inside -= 1
                if not self._inside:
                    self.seconds += time.perf_counter() - begin

        setattr(kind, name, timed)
        try:
            yield
        finally:
            setattr(kind, name, method)


def _sent() -> dict[str, int]:
    """Count what a client sends for the images of a job that it plays itself."""
    sent: list[int] = []
    call = Connection.call

    def counting(self: Connection, method: str, path: str, **options: Any) -> bytes:
        if method == "PUT" and path.startswith("/v1/images/"):
            sent.append(len(options["body"]))
        return call(self, method, path, **options)

    groups, steps = 4, 2
    with service(None, 'preload=["nano-vl"]') as running, tg.Client(running.url, running.api_key) as client:
        Connection.call = counting  # type: ignore[method-assign]
        try:
            job = client.train(
                Area,
                model="nano-vl",
                algorithm=tg.GRPO(group_size=GROUP, groups_per_step=groups),
                sampling=tg.Sampling(max_turn_tokens=6),
                steps=steps,
            )
            job.wait()
        finally:
            Connection.call = call  # type: ignore[method-assign]
        images = sum(1 for path in (running.home / "images").rglob("*") if path.is_file())
    shown = groups * GROUP * steps
    return {"shown": shown, "images": images, "sent": len(sent), "bytes": sum(sent)}
