"""The vLLM engine's side of the process border, with a process that dies and hangs on order."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from backend.compute.weights import AdapterWeights, FullWeights
from backend.engines.asking import Asked
from backend.engines.vllm.settings import engine_arguments, process_environment
from backend.engines.vllm.vllm_engine import VllmEngine
from backend.settings.served_models import PACKAGED_MODELS, VllmSettings
from tinkergym.errors import InvalidRequestError, ServiceUnavailableError, StorageFullError
from tinkergym.schema.sampling import SampleRequest

NANO = Path(PACKAGED_MODELS["nano"])
FAKE = Path(__file__).with_name("fake_vllm_host.py")
DIES, DIES_ONCE, HANGS_ONCE, HELD, UNREADABLE_ONCE, MUTE_ONCE = 901, 902, 903, 904, 905, 906
LAYER = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
ADAPTER = AdapterWeights(
    rank=1,
    alpha=1.0,
    tensors={f"{LAYER}A.weight": torch.ones(1, 128), f"{LAYER}B.weight": torch.ones(128, 1)},
)


def ask(
    first: int, policy: str = "", version: int = 0, request_id: str = "r", session_id: str = ""
) -> SampleRequest:
    return SampleRequest(
        request_id=request_id,
        policy=policy,
        policy_version=version,
        prompt_ids=[first, 5],
        max_tokens=2,
        session_id=session_id,
    )


def answers(engine, requests):
    found, done = [], threading.Event()

    def deliver(batch):
        found.extend(batch)
        if len(found) == len(requests):
            done.set()

    engine.submit(requests, deliver)
    assert done.wait(60)
    return found


@pytest.fixture
def start(tmp_path):
    engines = []
    (tmp_path / "lives").mkdir()

    def make(log=None, device="cpu", **settings):
        engine = VllmEngine(
            NANO,
            devices=(device,),
            settings=VllmSettings(**settings),
            log=log,
            host=(sys.executable, str(FAKE), str(tmp_path / "lives")),
        )
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def heard(tmp_path):
    def read(life):
        return [json.loads(line) for line in (tmp_path / "lives" / str(life)).read_text().splitlines()]

    return read


def test_computes_unanswered_requests_in_next_process_after_a_death(start):
    engine = start()
    found = answers(engine, [ask(7, request_id="a"), ask(DIES_ONCE, request_id="b"), ask(8, request_id="c")])
    assert {answer.request_id: answer.token_ids for answer in found} == {
        "a": [7, 7],
        "b": [DIES_ONCE] * 2,
        "c": [8, 8],
    }
    assert engine.restarts == 1
    assert engine.generate_together([ask(9)])[0].token_ids == [9, 9]


def test_makes_tenant_that_asks_too_much_leave_room_for_others(start, heard):
    engine = start(max_sequences=16)
    engine.submit([ask(HELD, request_id=str(n), session_id="flood/") for n in range(40)], lambda found: None)
    assert [answer.token_ids for answer in answers(engine, [ask(7, session_id="small/")])] == [[7, 7]]
    assert [message["prompt"][0] for message in heard(0) if message.get("do") == "sample"] == [
        *[HELD] * 14,
        7,
    ]


def test_keeps_joint_batch_over_a_restart_too(start):
    engine = start()
    found = engine.generate_together([ask(4), ask(DIES_ONCE)])
    assert [answer.token_ids for answer in found] == [[4, 4], [DIES_ONCE] * 2]


def test_tells_new_process_every_policy_before_it_gets_a_request(start, heard):
    engine = start()
    engine.publish("job", 1, ADAPTER)
    engine.publish("job", 2, ADAPTER)
    engine.publish("other", 5, ADAPTER)
    engine.publish("gone", 1, ADAPTER)
    engine.retire("gone")
    assert answers(engine, [ask(DIES_ONCE, "job", 2)])[0].policy_version == 2
    first, *others = heard(1)
    assert {policy["name"] for policy in first["policies"]} == {"job@2", "other@5"}
    assert [message["do"] for message in others][:1] == ["sample"]
    assert engine.loaded() == {"job": 2, "other": 5}


def test_keeps_a_finishing_version_over_deaths_until_its_last_answer(start, heard):
    engine = start()
    engine.publish("job", 1, ADAPTER)
    asked = Asked(engine, [ask(HELD, "job", 1)])
    engine.publish("job", 2, ADAPTER, let_finish=True)
    assert engine.loaded() == {"job": 2}
    assert asked.wait(0) == {}
    assert answers(engine, [ask(DIES_ONCE, "job", 2)])[0].policy_version == 2
    (answer,) = asked.wait(60).values()
    assert (answer.token_ids, answer.policy_version) == ([HELD] * 2, 1)
    first = heard(1)[0]
    assert {policy["name"] for policy in first["policies"]} == {"job@1", "job@2"}
    old = next(policy["policy"] for policy in first["policies"] if policy["name"] == "job@1")
    # Its answer, and what follows from it, may still be on their way.
    answers(engine, [ask(7, "job", 2)])
    assert {"do": "drop", "id": 0, "policy": old} in heard(1)


@pytest.fixture
def together(heard):
    """Begin to ask for requests that are computed together; returns when the process has heard of them."""

    def ask_for(engine, requests):
        found = threads.submit(engine.generate_together, requests)
        deadline = time.monotonic() + 60
        while not any(message.get("do") == "together" for message in heard(0)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return found

    threads = ThreadPoolExecutor()
    yield ask_for
    threads.shutdown(wait=False)  # what is not answered yet is so when the engine is closed


def test_queues_second_batch_behind_same_tenants_first_only(start, heard, together):
    engine = start()
    together(engine, [ask(HELD, session_id="ada/1")])
    second = Future()
    engine.submit_together([ask(7, session_id="ada/2")], second.set_result)
    (other,) = engine.generate_together([ask(8, session_id="bob/1")])
    assert other.token_ids == [8, 8]
    batches = [message["requests"] for message in heard(0) if message.get("do") == "together"]
    assert [[request["prompt"][0] for request in batch] for batch in batches] == [[HELD], [8]]
    assert not second.done()


def test_fails_a_batch_with_unreadable_answer_but_not_the_next(start):
    engine = start()
    failed = engine.generate_together([ask(UNREADABLE_ONCE), ask(7)])
    assert [answer.error.type for answer in failed] == ["InternalServiceError"] * 2
    assert [answer.token_ids for answer in engine.generate_together([ask(7)])] == [[7, 7]]


def test_frees_room_of_a_batch_whose_sender_is_gone(start, heard, together):
    class Receiver(Future):
        gone = False

        __call__ = Future.set_result

    engine, receiver = start(), Receiver()
    engine.submit_together([ask(HELD, session_id="ada/1"), ask(7, session_id="ada/1")], receiver)
    receiver.gone = True
    (following,) = engine.generate_together([ask(8, session_id="ada/2")])
    assert following.token_ids == [8, 8]
    assert [answer.error.type for answer in receiver.result(60)] == ["ServiceUnavailableError"] * 2
    (batch, *_) = [message["id"] for message in heard(0) if message.get("do") == "together"]
    assert [message["ids"] for message in heard(0) if message.get("do") == "abort"] == [[batch]]


def test_keeps_a_finishing_version_for_joint_requests_too(start, heard, together):
    engine = start()
    engine.publish("job", 1, ADAPTER)
    found = together(engine, [ask(HELD, "job", 1), ask(7)])
    engine.publish("job", 2, ADAPTER, let_finish=True)
    answers(engine, [ask(DIES_ONCE, "job", 2)])
    assert [(a.token_ids, a.policy_version) for a in found.result(60)] == [([HELD] * 2, 1), ([7] * 2, 0)]
    assert {policy["name"] for policy in heard(1)[0]["policies"]} == {"job@1", "job@2"}


def test_drops_from_joint_requests_only_those_of_a_retired_policy(start, together):
    engine = start()
    for name in ("job", "other"):
        engine.publish(name, 1, ADAPTER)
    found = together(engine, [ask(HELD, "job", 1), ask(7, "other", 1)])
    engine.retire("job")
    answers(engine, [ask(DIES_ONCE)])
    gone, answered = found.result(60)
    assert gone.error.type == "PolicyVersionGoneError"
    assert answered.token_ids == [7, 7]


def test_stops_awaiting_joint_requests_of_retired_policies_alone(start, together):
    engine = start()
    engine.publish("job", 1, ADAPTER)
    found = together(engine, [ask(HELD, "job", 1), ask(7, "job", 1)])
    engine.retire("job")
    assert [answer.error.type for answer in found.result(60)] == ["PolicyVersionGoneError"] * 2


def test_never_reuses_a_policys_number(start, heard):
    engine = start()
    for version in (1, 2, 1):
        engine.publish("job", version, ADAPTER)
        engine.retire("job")
    loads = [message["policy"] for message in heard(0) if message.get("do") == "load"]
    assert len(set(loads)) == 3


def test_finds_hanging_process_by_its_canary_and_replaces_it(start):
    engine = start(canary_seconds=0.1, canary_deadline_seconds=1.0)
    assert answers(engine, [ask(HANGS_ONCE)])[0].token_ids == [HANGS_ONCE] * 2
    assert 1 <= engine.restarts <= 3  # On a busy machine a sound one can be late, too.


def test_finds_hanging_process_that_takes_policies_but_samples_nothing(start):
    engine = start(canary_seconds=0.3, canary_deadline_seconds=1.0)
    found = []
    engine.submit([ask(MUTE_ONCE)], found.extend)
    version = 0
    while not found:
        version += 1
        engine.publish("job", version, ADAPTER)
    assert 1 <= engine.restarts <= 3


def test_gives_up_request_that_kills_processes_and_answers_the_others(start):
    engine = start()
    found = {a.request_id: a for a in answers(engine, [ask(DIES, request_id="bad")])}
    assert found["bad"].error.type == "InternalServiceError"
    assert answers(engine, [ask(7)])[0].token_ids == [7, 7]


def test_blames_no_waiting_request_for_a_failed_start(start, tmp_path):
    (tmp_path / "broken").write_text("1 2")
    engine = start()
    assert answers(engine, [ask(DIES_ONCE)])[0].token_ids == [DIES_ONCE] * 2
    assert engine.restarts == 1


def test_reports_with_its_words_a_model_that_vllm_cannot_start(start, tmp_path):
    (tmp_path / "broken").write_text("0")
    with pytest.raises(InvalidRequestError, match="made of cheese"):
        start()


def test_says_why_a_process_cannot_be_started_at_all(start, tmp_path):
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "engine"):
        start(log=tmp_path / "nowhere" / "vllm.log")


def test_answers_every_caller_when_no_process_can_start_any_more(start, tmp_path):
    (tmp_path / "logs").mkdir()
    engine = start(log=tmp_path / "logs" / "vllm.log")
    (tmp_path / "logs").rename(tmp_path / "moved")
    waited, later = answers(engine, [ask(DIES_ONCE)]) + answers(engine, [ask(7)])
    assert waited.error == later.error
    assert "No such file or directory" in later.error.message
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "engine"):
        engine.publish("job", 1, ADAPTER)
    assert not engine.sleep()


def test_asks_again_for_an_unreadable_answer(start):
    engine = start()
    found = answers(
        engine, [ask(7, request_id="a"), ask(UNREADABLE_ONCE, request_id="b"), ask(8, request_id="c")]
    )
    assert {answer.request_id: answer.token_ids for answer in found} == {
        "a": [7, 7],
        "b": [UNREADABLE_ONCE] * 2,
        "c": [8, 8],
    }


def test_gives_up_what_nobody_waits_for_any_more(start, heard):
    class Receiver:
        def __init__(self):
            self.gone, self.answers, self.answered = False, [], threading.Event()

        def __call__(self, batch):
            self.answers += batch
            self.answered.set()

    engine = start()
    stays, hangs_up = Receiver(), Receiver()
    engine.submit([ask(HELD, request_id="stays")], stays)
    engine.submit([ask(HELD, request_id="goes")], hangs_up)
    hangs_up.gone = True
    assert hangs_up.answered.wait(60)
    (answer,) = hangs_up.answers
    assert answer.error.type == "ServiceUnavailableError"
    answers(engine, [ask(7)])  # what was said before has been heard by now
    asked = [message["id"] for message in heard(0) if message.get("do") == "sample"]
    assert {"do": "abort", "id": 0, "ids": [asked[1]]} in heard(0)
    assert not stays.answers


def test_answers_requests_in_flight_for_the_old_version_on_publish(start):
    engine = start()
    engine.publish("job", 1, ADAPTER)
    asked = Asked(engine, [ask(HANGS_ONCE, "job", 1)])
    # The process says nothing any more, so this publish waits for the next one, which the canary brings.
    engine.retire("job")
    (answer,) = asked.wait(60).values()
    assert answer.error.type == "PolicyVersionGoneError"


def test_answers_open_requests_and_leaves_nothing_behind_on_closing(start):
    engine = start()
    found, done = [], threading.Event()

    def deliver(batch):
        found.extend(batch)
        done.set()

    engine.submit([ask(HANGS_ONCE)], deliver)
    engine.close()
    assert done.wait(60)
    late = engine.generate_together([ask(7)])
    assert [answer.error.type for answer in (*found, *late)] == ["ServiceUnavailableError"] * 2
    assert engine.host_pid is None
    with pytest.raises(ServiceUnavailableError):
        engine.publish("job", 1, ADAPTER)


def test_rejects_what_vllm_would_do_otherwise_than_asked(start):
    engine = start(max_adapter_rank=8)
    refused = answers(
        engine,
        [
            ask(7).model_copy(update={"temperature": 0.001}),
            ask(7).model_copy(update={"prompt_ids": [10**6]}),
            ask(7).model_copy(update={"prompt_ids": [7] * engine.context_length}),
            ask(7, "job", 3),
            ask(7, version=3),
        ],
    )
    assert [answer.error.type for answer in refused] == [
        "InvalidRequestError",
        "InvalidRequestError",
        "PromptTooLongError",
        "PolicyVersionGoneError",
        "PolicyVersionGoneError",
    ]
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "adapter.rank"):
        engine.publish("job", 1, AdapterWeights(rank=9, alpha=1.0, tensors=ADAPTER.tensors))
    narrow = {name: tensor[..., :1] for name, tensor in ADAPTER.tensors.items()}
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "other_model"):
        engine.publish("job", 1, AdapterWeights(rank=1, alpha=1.0, tensors=narrow))
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "other_model"):
        engine.publish("job", 1, FullWeights(tensors={}))
    wild = {name: tensor * float("nan") for name, tensor in ADAPTER.tensors.items()}
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "not_finite"):
        engine.publish("job", 1, AdapterWeights(rank=1, alpha=1.0, tensors=wild))


def test_ends_process_when_asleep_and_restarts_it_with_all_policies(start, heard):
    engine = start(sleep="end")
    engine.publish("job", 1, ADAPTER)
    process = psutil.Process(engine.host_pid)
    assert engine.sleep()
    assert engine.host_pid is None
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert engine.sleep()  # still
    engine.retire("other")
    assert engine.asleep
    found = answers(engine, [ask(7, "job", 1)])
    assert found[0].token_ids == [7, 7]
    assert [policy["name"] for policy in heard(1)[0]["policies"]] == ["job@1"]
    assert not engine.asleep
    assert engine.restarts == 0
    assert engine.sleep()
    engine.publish("job", 2, ADAPTER)
    assert engine.loaded() == {"job": 2}
    assert engine.sleep()


def test_does_not_sleep_with_unanswered_requests(start):
    engine = start(sleep="end")
    done = threading.Event()
    engine.submit([ask(HELD)], lambda batch: done.set())
    assert not engine.sleep()
    assert not engine.asleep
    os.kill(engine.host_pid, signal.SIGKILL)
    assert done.wait(60)
    assert engine.sleep()


def test_closes_while_asleep_and_then_rejects_requests(start):
    engine = start(sleep="end")
    assert engine.sleep()
    engine.close()
    assert not engine.sleep()
    assert answers(engine, [ask(7)])[0].error.type == "ServiceUnavailableError"


def arguments(device, **settings):
    return engine_arguments(VllmSettings(**settings), Path("m"), 10, device, shapes={})


def test_uses_sleep_of_vllm_where_it_can_give_memory_back(start, heard):
    engine = start(sleep="offload")
    assert engine.sleep()
    assert engine.asleep
    assert engine.sleep()
    engine.wake()
    assert not engine.asleep
    answers(engine, [ask(7)])
    assert [message["do"] for message in heard(0)[1:]] == ["sleep", "wake", "sample"]
    modes = {
        (device, sleep): arguments(device, sleep=sleep)["enable_sleep_mode"]
        for device in ("cpu", "cuda:1")
        for sleep in ("auto", "end", "offload")
    }
    assert [key for key, enabled in modes.items() if enabled] == [("cuda:1", "auto"), ("cuda:1", "offload")]


@pytest.mark.parametrize(
    ("device", "asked", "eager"), [("cuda:0", False, False), ("cuda:0", True, True), ("cpu", False, True)]
)
def test_decodes_by_cuda_graphs_unless_the_operator_says_no(device, asked, eager):
    assert arguments(device, enforce_eager=asked)["enforce_eager"] is eager


@pytest.mark.parametrize(
    ("devices", "ours", "theirs"),
    [
        (["cuda"], None, None),
        (["cuda"], "2,3", "2,3"),
        (["cuda:1"], None, "1"),
        (["cuda:1"], "2,3", "3"),
        (["cuda:0"], "GPU-4a, GPU-7b", "GPU-4a"),
        (["cuda:1", "cuda:2"], "GPU-4a,GPU-7b,GPU-9c", "GPU-7b,GPU-9c"),
        (["cuda:2", "cuda:0"], None, "2,0"),
        (["cpu", "cpu"], None, None),
    ],
)
def test_counts_gpu_of_vllm_as_the_services(monkeypatch, tmp_path, devices, ours, theirs):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if ours is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ours)
    assert process_environment(tmp_path, devices, 1).get("CUDA_VISIBLE_DEVICES") == theirs


@pytest.fixture
def gpu(monkeypatch):
    """Stand in for a GPU's memory; return an event for each piece taken, set when it is free again."""
    freed = []

    def share(tensors, device):
        assert device == torch.device("cuda", 1)
        memory = torch.zeros(1)
        freed.append(threading.Event())
        weakref.finalize(memory, freed[-1].set)
        return memory, {"cuda": len(freed)}

    monkeypatch.setattr("backend.engines.vllm.weight_handover.share_on_device", share)
    return freed


FULL = FullWeights(tensors=load_file(NANO / "model.safetensors"))


def test_keeps_full_weights_on_gpu_until_the_process_has_read(start, heard, gpu, tmp_path):
    engine = start(device="cuda:1", full_weights="device")
    reading = tmp_path / "reading"
    reading.touch()
    engine.publish("job", 1, FULL)
    engine.publish("job", 2, FULL)
    answers(engine, [ask(7, "job", 2)])
    assert not gpu[0].is_set()
    reading.unlink()
    answers(engine, [ask(7, "job", 2)])
    assert gpu[0].wait(60)
    answers(engine, [ask(DIES_ONCE, "job", 2)])
    (known,) = heard(1)[0]["policies"]
    assert (known["shared"], known["names"]) == ({"cuda": 2}, list(FULL.tensors))
    assert not gpu[1].is_set()


def test_reads_nothing_in_a_process_that_died(start, gpu, tmp_path):
    engine = start(device="cuda:1", full_weights="device")
    (tmp_path / "reading").touch()
    engine.publish("job", 1, FULL)
    engine.publish("job", 2, FULL)
    os.kill(engine.host_pid, signal.SIGKILL)
    assert gpu[0].wait(60)
    answers(engine, [ask(7, "job", 2)])
    assert not gpu[1].is_set()


def test_gives_retired_policy_nothing_while_no_process_exists(start, gpu):
    engine = start(device="cuda:1", full_weights="device", sleep="end")
    engine.publish("job", 1, FULL)
    assert engine.sleep()
    assert not gpu[0].is_set()
    engine.retire("job")
    assert gpu[0].is_set()


def test_keeps_nothing_on_a_gpu_when_closed(start, gpu):
    engine = start(device="cuda:1", full_weights="device")
    engine.publish("job", 1, FULL)
    engine.close()
    assert gpu[0].is_set()
    with pytest.raises(ServiceUnavailableError) as caught:
        engine.publish("job", 2, FULL)
    assert gpu[1].is_set(), caught


def test_rejects_what_has_no_room_on_gpu_and_keeps_version(start, gpu, monkeypatch):
    engine = start(device="cuda:1", full_weights="device")
    engine.publish("job", 1, FULL)

    def full(tensors, device):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("backend.engines.vllm.weight_handover.share_on_device", full)
    with pytest.raises(StorageFullError):
        engine.publish("job", 2, FULL)
    assert engine.loaded() == {"job": 1}
    assert not gpu[0].is_set()


def test_keeps_nothing_on_a_gpu_without_one(start):
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "vllm.full_weights"):
        start(full_weights="device")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("weights", [ADAPTER, FULL], ids=["adapter", "full"])
def test_rejects_what_has_no_room_on_host_and_leaves_nothing(start, monkeypatch, weights, number):
    engine = start()
    engine.publish("job", 1, weights)
    kept = sorted(engine._folder.rglob("*"))

    def full(*_, **__):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        name = "write_adapter" if weights is ADAPTER else "share_in_file"
        patched.setattr(f"backend.engines.vllm.weight_handover.{name}", full)
        with pytest.raises(StorageFullError):
            engine.publish("job", 2, weights)
    assert engine.loaded() == {"job": 1}
    assert sorted(engine._folder.rglob("*")) == kept
