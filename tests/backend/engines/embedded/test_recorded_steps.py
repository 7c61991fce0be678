from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.compute.weights import PolicyWeights
from backend.config import ServiceConfig, VllmSettings
from backend.engines.asking import Asked
from backend.engines.embedded.engine import TransformersEngine
from backend.engines.embedded.packed_batch import PackedBatch, Span
from backend.engines.embedded.recorded_steps import CudaGraphs
from backend.engines.embedded.slot_cache import SlotCache
from backend.workers.engine_choice import make_engine
from tests.backend.engines.conftest import NANO, ModelSubject, Replays
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

Start = Callable[..., ModelSubject]
Step = Callable[[], torch.Tensor]


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[TransformersEngine] = []

    def make(**options: Any) -> ModelSubject:
        engines.append(TransformersEngine(NANO, **options))
        return ModelSubject(engines[-1])

    yield make
    for engine in engines:
        engine.close()


def ask(name: int, *, length: int = 6, tokens: int = 20, **options: Any) -> SampleRequest:
    prompt = [3 + (7 * i + 5 * name) % 60 for i in range(length)]
    settings: dict[str, Any] = {"policy": "", "policy_version": 0} | options
    return SampleRequest(
        request_id=f"r{name}", prompt_ids=prompt, max_tokens=tokens, temperature=1.0, seed=name, **settings
    )


def assert_right(subject: ModelSubject, requests: list[SampleRequest]) -> list[list[int]]:
    """Ask for them at once, compare with plain transformers, and return the tokens."""
    found = Asked(subject.engine, requests).wait(60)
    answers = [found[request.request_id] for request in requests]
    for request, answer in zip(requests, answers, strict=True):
        assert isinstance(answer, Completion), answer
        assert answer.sampling_logprobs == pytest.approx(
            subject.expected(request, answer), abs=subject.tolerance
        )
    return [answer.token_ids for answer in answers if isinstance(answer, Completion)]


def replayed(subject: ModelSubject) -> int:
    assert isinstance(subject.engine, TransformersEngine)
    return subject.engine.stats().replayed_steps


def test_replayed_steps_sample_what_computed_ones_do(start):
    plain, recorder = start(), Replays()
    recorded = start(recorder=recorder)
    requests = [ask(i, length=4 + i, tokens=40 - 3 * i) for i in range(11)]
    assert assert_right(recorded, requests) == assert_right(plain, requests)
    assert replayed(plain) == 0
    # Of 39 steps with one token each; the others were the first three of their shapes.
    assert replayed(recorded) >= 20
    assert recorder.recorded <= 5


def test_most_steps_of_a_longer_answer_have_the_shape_of_the_one_before(start):
    recorder = Replays()
    subject = start(recorder=recorder)
    assert_right(subject, [ask(i, tokens=200) for i in range(8)])
    assert replayed(subject) >= 190
    # The cache grows, and what was recorded of it counts no more.
    assert recorder.recorded <= 6


@pytest.mark.parametrize("kind", ["weights", "full_weights"])
def test_a_recording_never_answers_for_weights_that_are_not_where_they_were(start, kind):
    subject = start(recorder=Replays(), merged_adapters=1)

    def weights(seed: int) -> PolicyWeights:
        return subject.weights(seed) if kind == "weights" else subject.full_weights(seed)

    for version in range(4):
        subject.publish("one", version, weights(10 + version))
        subject.publish("two", version, weights(20 + version))
        for policy in ("one", "two", ""):
            assert_right(
                subject,
                [ask(i, policy=policy, policy_version=version if policy else 0) for i in range(5)],
            )
    assert replayed(subject) > 100


def test_the_next_version_of_an_adapter_is_replayed_by_the_recordings_of_the_last(start):
    recorder, requests = Replays(), []
    subject = start(recorder=recorder)
    for version in range(4):
        subject.publish("one", version, subject.weights(version))
        requests = [ask(i, policy="one", policy_version=version) for i in range(5)]
        assert_right(subject, requests)
        if version == 0:
            made, before = recorder.recorded, replayed(subject)
    assert recorder.recorded == made
    assert replayed(subject) == before + 3 * 19


def test_policies_in_one_step_are_computed(start):
    subject = start(recorder=Replays())
    for policy in ("one", "two"):
        subject.publish(policy, 1, subject.weights(len(policy)))
    names = ["one", "two", ""]
    requests = [
        ask(i, policy=names[i % 3], policy_version=1 if names[i % 3] else 0, tokens=15) for i in range(9)
    ]
    assert_right(subject, requests)
    assert replayed(subject) == 0


def test_rows_that_stand_far_apart_in_the_cache_are_replayed_too(start):
    subject = start(recorder=Replays())
    # All but the last end soon, and leave it in a slot behind many that are idle.
    assert_right(subject, [ask(i, tokens=4) for i in range(40)] + [ask(40, tokens=60)])
    assert replayed(subject) >= 50


def test_a_sleeping_engine_keeps_no_recording(start):
    recorder = Replays()
    subject = start(recorder=recorder)
    requests = [ask(i) for i in range(4)]
    before = assert_right(subject, requests)
    assert recorder.kept
    assert subject.engine.sleep()
    assert not recorder.kept
    assert assert_right(subject, requests) == before
    assert recorder.kept


def test_recordings_of_many_shapes_are_not_all_kept(start):
    recorder = Replays()
    subject = start(recorder=recorder)
    # Each policy has weights of its own, and so has each number of rows.
    for seed in range(9):
        subject.publish(f"policy {seed}", 1, subject.full_weights(seed))
        for rows in (1, 2, 3, 5, 9, 17, 25, 33):
            asked = [ask(i, tokens=4, policy=f"policy {seed}", policy_version=1) for i in range(rows)]
            assert_right(subject, asked)
    assert recorder.recorded > 64
    assert recorder.forgotten == 1
    assert recorder.kept <= 64


class Fails(Replays):
    """Nothing can be recorded."""

    def record(self, step: Step) -> Step:
        raise RuntimeError("operation not permitted when stream is capturing")


class Frozen(Replays):
    """What is replayed reads none of its numbers."""

    def record(self, step: Step) -> Step:
        found = step().clone()
        return lambda: found


class KeepsNothing(Replays):
    """What is replayed stores no keys and values."""

    def record(self, step: Step) -> Step:
        engine = self.engine

        def replay() -> torch.Tensor:
            cache = engine._scheduler.table.cache
            stores = [*cache.keys.values(), *cache.values.values()]
            before = [store.clone() for store in stores]
            found = step()
            for store, old in zip(stores, before, strict=True):
                store.copy_(old)
            return found

        return replay


class OneRowIsOff(Replays):
    """Half the logits of one row of many are too large."""

    def record(self, step: Step) -> Step:
        def replay() -> torch.Tensor:
            found = step()
            found[-1, ::2] += 1.0
            return found

        return replay


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Fails, Frozen, KeepsNothing, OneRowIsOff])
def test_where_recordings_do_not_do_what_the_step_does_steps_are_computed(start, kind, dtype, caplog):
    recorder = kind()
    subject = start(recorder=recorder, dtype=dtype)
    recorder.engine = subject.engine
    requests = [ask(i, tokens=8) for i in range(128)]
    plain = start(dtype=dtype)
    found = [Asked(each.engine, requests).wait(60) for each in (subject, plain)]
    for request in requests:
        left, right = (answers[request.request_id] for answers in found)
        assert left.token_ids == right.token_ids
        assert left.sampling_logprobs == pytest.approx(right.sampling_logprobs, abs=1e-4)
    assert replayed(subject) == 0
    assert recorder.forgotten == 1
    told = [record for record in caplog.records if "from now on all are computed" in record.getMessage()]
    assert len(told) == 1


def test_a_policy_that_has_diverged_does_not_end_the_recordings(start):
    recorder = Replays()
    subject = start(recorder=recorder)
    huge = subject.weights(1)
    subject.engine.publish(
        "one", 1, replace(huge, tensors={name: tensor * 1e19 for name, tensor in huge.tensors.items()})
    )
    requests = [ask(i, policy="one", policy_version=1) for i in range(3)]
    found = Asked(subject.engine, requests).wait(60)
    assert all(isinstance(answer, SampleFailure) for answer in found.values())
    assert_right(subject, [ask(i) for i in range(4)])
    assert replayed(subject) > 0


class Captured:
    """A CUDA graph whose recording begins or ends with an error."""

    def __init__(self, at: str) -> None:
        self._at = at

    def capture_begin(self, **_: Any) -> None:
        if self._at == "begin":
            raise RuntimeError("INTERNAL ASSERT FAILED")

    def capture_end(self) -> None:
        if self._at == "end":
            raise RuntimeError("cudaErrorStreamCaptureInvalidated")


@pytest.mark.parametrize("at", ["begin", "step", "end"])
def test_a_recording_that_fails_leaves_its_stream(monkeypatch, at):
    here: list[object] = ["the default"]

    @contextmanager
    def on(stream: object) -> Iterator[None]:
        here.append(stream)
        try:
            yield
        finally:
            here.pop()

    def step() -> torch.Tensor:
        assert len(here) == 2
        if at == "step":
            raise RuntimeError("operation not permitted when stream is capturing")
        return torch.zeros(1)

    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda: "its own")
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Captured(at))
    with pytest.raises(RuntimeError):
        CudaGraphs(torch.device("cuda")).record(step)
    assert here == ["the default"]


def test_slots_in_the_middle_of_the_cache_are_read_where_they_are():
    cache = SlotCache(slots=256, length=512, device=torch.device("cpu"), dtype=torch.float32)
    spans = [Span(slot=slot, start=40, tokens=1) for slot in range(64, 128)]
    (shape,) = PackedBatch(cache, spans, torch.device("cpu"), few_shapes=True).shapes
    assert (shape.low, shape.high, shape.reach) == (64, 128, 256)


def test_what_is_asked_for_together_is_computed_so_that_its_bits_are_the_same(start):
    plain, recorded = start(), start(recorder=Replays())
    requests = [ask(i, tokens=30) for i in range(5)]
    assert_right(recorded, requests)
    before = replayed(recorded)
    found = recorded.engine.generate_together(requests)
    assert replayed(recorded) == before
    assert found == plain.engine.generate_together(requests)


def test_a_model_that_is_not_recorded_is_refused(make_model):
    with pytest.raises(InvalidRequestError, match="not recorded") as refused:
        TransformersEngine(make_model("gpt2"), recorder=Replays())
    assert refused.value.field == "cuda_graphs"


def test_cuda_graphs_are_refused_where_there_can_be_none(tmp_path: Path):
    with pytest.raises(InvalidRequestError, match="needs a GPU") as refused:
        make_engine(
            "transformers",
            NANO,
            device="cpu",
            device_lock=Replays(),  # type: ignore[arg-type]
            threads=1,
            vllm=VllmSettings(),
            log=tmp_path / "log",
            cuda_graphs=True,
        )
    assert refused.value.field == "cuda_graphs"
    for settings in ({"engine": "vllm"}, {"engine": "scripted"}, {"device": "cpu"}):
        with pytest.raises(ValueError, match="cuda_graphs=true is for engine=transformers on a GPU"):
            ServiceConfig.model_validate({"data_dir": tmp_path, "cuda_graphs": True, **settings})
