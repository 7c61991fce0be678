from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.config import ServiceConfig, VllmSettings
from backend.rollout.engines.asking import Asked
from backend.rollout.engines.choose import make_engine
from backend.rollout.engines.transformers_engine import TransformersEngine
from backend.weights import PolicyWeights
from tests.backend.rollout.engines.conftest import NANO, ModelSubject, Replays
from tinkergym.errors import InvalidRequestError
from tinkergym.wire import Completion, SampleRequest

Start = Callable[..., ModelSubject]


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
    # Of 39 steps with one token each; the others were the first two of their shapes.
    assert replayed(recorded) >= 25
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
    for rows in (1, 2, 3, *range(5, 161, 8)):
        assert_right(subject, [ask(i, tokens=4) for i in range(rows)])
    assert recorder.recorded > 16
    assert recorder.kept <= 16


class Fails:
    def record(self, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("recorder", [Fails(), Replays(spoiled=5.0)], ids=["raises", "is off"])
def test_where_recording_does_not_work_steps_are_computed(start, recorder, caplog):
    subject = start(recorder=recorder)
    assert_right(subject, [ask(i) for i in range(6)])
    assert_right(subject, [ask(i, length=9) for i in range(3)])
    assert replayed(subject) == 0
    assert len([record for record in caplog.records if "computed" in record.message]) == 1


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
