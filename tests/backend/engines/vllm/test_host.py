"""What the vLLM host knows of policies and their requests; what stands in for vLLM computes nothing."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from backend.compute.weights import AdapterWeights
from backend.engines.vllm.files import write_adapter
from backend.engines.vllm.shared_weights import share_in_file

_HOST = "backend.engines.vllm.host"
_LAYER = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
_ADAPTER = AdapterWeights(
    rank=1,
    alpha=1.0,
    tensors={f"{_LAYER}A.weight": torch.ones(1, 128), f"{_LAYER}B.weight": torch.ones(128, 1)},
)
_STAND_INS = {
    "vllm": {"SamplingParams": SimpleNamespace},
    "vllm.engine.arg_utils": {"AsyncEngineArgs": SimpleNamespace},
    "vllm.exceptions": {"VLLMClientError": type("VLLMClientError", (Exception,), {})},
    "vllm.inputs.engine": {"tokens_input": lambda prompt, cache_salt: prompt},
    "vllm.lora.request": {"LoRARequest": lambda name, key, path: name},
    "vllm.sampling_params": {
        "RequestOutputKind": SimpleNamespace(FINAL_ONLY=None),
        "StructuredOutputsParams": SimpleNamespace,
    },
    "vllm.v1.engine.async_llm": {"AsyncLLM": object},
    "vllm.v1.engine.exceptions": {"EngineDeadError": type("EngineDeadError", (Exception,), {})},
}


class Vllm:
    """Answers as soon as the gate is open; remembers which adapter each request came with."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.asked = asyncio.Queue()
        self.removed = []
        self.aborted = []
        self.closed_gates = set()
        """Ids of requests that are not answered."""

    async def add_lora(self, adapter):
        pass

    async def remove_lora(self, key):
        self.removed.append(key)

    async def collective_rpc(self, method, args):
        self.asked.put_nowait((method, args))
        await self.gate.wait()

    async def reset_prefix_cache(self):
        pass

    async def pause_generation(self, **_):
        pass

    async def resume_generation(self):
        pass

    async def add_request(self, request_id, prompt, settings, *, lora_request):
        self.asked.put_nowait((request_id, lora_request))

        async def output():
            if request_id in self.closed_gates:
                await asyncio.Event().wait()
            return await self._output()

        return SimpleNamespace(request_id=request_id, get_nowait=lambda: None, get=output, close=lambda: None)

    async def abort(self, request_id, *, internal):
        assert internal
        self.aborted.append(request_id)

    async def _output(self):
        await self.gate.wait()
        sampled = SimpleNamespace(
            token_ids=[5], logprobs=[{5: SimpleNamespace(logprob=-1.0)}], finish_reason="length"
        )
        return SimpleNamespace(finished=True, outputs=[sampled], num_cached_tokens=0, prompt_logprobs=None)


@pytest.fixture
def vllm_host(monkeypatch):
    for path, names in _STAND_INS.items():
        module = ModuleType(path)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, path, module)
    monkeypatch.delitem(sys.modules, _HOST, raising=False)
    yield importlib.import_module(_HOST)
    del sys.modules[_HOST]


@pytest.fixture
def play(vllm_host, tmp_path):
    """Run what a test does with a host that has two adapters: policies 1 and 2."""

    async def begin(deeds):
        vllm, said = Vllm(), asyncio.Queue()
        host = vllm_host.Host(vllm, said.put_nowait, model_directory=Path("model"))
        for key in (1, 2):
            folder = tmp_path / str(key)
            write_adapter(folder, _ADAPTER)
            given = {"path": str(folder), "nothing": str(folder)}
            host.handle({"do": "load", "id": key, "policy": key, "name": "job", **given})
            assert "sha256" in await said.get()
        await deeds(host, vllm, said)

    return lambda deeds: asyncio.run(asyncio.wait_for(begin(deeds), 60))


def request_for(policy, number):
    return {
        "id": number,
        "policy": policy,
        "prompt": [1],
        "max_tokens": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": 0,
        "stop": [],
        "stop_strings": [],
        "stream": False,
        "top_logprobs": 0,
        "prompt_logprobs": None,
        "structured": None,
        "salt": "",
        "images": [],
    }


def test_keeps_dropped_policys_adapter_for_a_waiting_batch(play):
    async def deeds(host, vllm, said):
        host.handle({"do": "sample", **request_for(2, 10)})
        assert await vllm.asked.get() == ("r10", "job#2")
        host.handle({"do": "together", "id": 11, "requests": [request_for(1, 12), request_for(1, 13)]})
        host.handle({"do": "drop", "id": 0, "policy": 1})
        assert await said.get() == {"id": 0}
        assert not vllm.removed
        vllm.gate.set()
        assert (await said.get())["id"] == 10
        assert [answer["tokens"] for answer in (await said.get())["answers"]] == [[5], [5]]
        assert [vllm.asked.get_nowait() for _ in range(2)] == [("r12", "job#1"), ("r13", "job#1")]
        assert await said.get() == {"dropped": 1}
        assert vllm.removed == [1]

    play(deeds)


def test_ends_batch_whose_sender_is_gone(play):
    async def deeds(host, vllm, said):
        vllm.gate.set()
        vllm.closed_gates.add("r12")
        waiting, running, following = 20, 11, 30
        host.handle({"do": "together", "id": running, "requests": [request_for(1, n) for n in (12, 13)]})
        host.handle({"do": "together", "id": waiting, "requests": [request_for(1, 21)]})
        host.handle({"do": "together", "id": following, "requests": [request_for(2, 31)]})
        assert [await vllm.asked.get() for _ in range(2)] == [("r12", "job#1"), ("r13", "job#1")]
        host.handle({"do": "abort", "id": 0, "ids": [running, waiting]})
        answer = await said.get()
        assert answer["id"] == following
        assert set(vllm.aborted) == {"r12", "r13"}
        assert vllm.asked.get_nowait() == ("r31", "job#2")
        assert vllm.asked.empty()

    play(deeds)


def test_answers_a_canary_by_sampling_a_token(play):
    async def deeds(host, vllm, said):
        vllm.gate.set()
        host.handle({"do": "canary", "id": 9})
        assert await said.get() == {"id": 9, "alive": True}
        assert (await vllm.asked.get())[0] == "rcanary"

    play(deeds)


def test_never_answers_a_missing_policy_from_the_base_model(play):
    async def deeds(host, vllm, said):
        vllm.gate.set()
        host.handle({"do": "sample", **request_for(9, 10)})
        assert await said.get() == {"id": 10, "gone": True}
        host.handle({"do": "together", "id": 11, "requests": [request_for(p, 20 + p) for p in (9, 2, 0)]})
        gone, adapted, base = (await said.get())["answers"]
        assert gone == {"gone": True}
        assert adapted["tokens"] == base["tokens"] == [5]
        assert [vllm.asked.get_nowait() for _ in range(2)] == [("r22", "job#2"), ("r20", "nothing")]
        assert vllm.asked.empty()

    play(deeds)


def test_keeps_weights_being_read_although_their_caller_is_gone(play, tmp_path):
    async def deeds(host, vllm, said):
        shared = share_in_file({"w": torch.ones(2)}, tmp_path / "weights")
        host.handle({"do": "load", "id": 9, "policy": 3, "name": "full", "shared": shared, "names": ["w"]})
        assert (await said.get())["id"] == 9
        host.handle({"do": "sample", **request_for(3, 10)})
        assert await vllm.asked.get() == ("tinkergym_load_weights", (shared, ["w"]))
        host.handle({"do": "abort", "id": 0, "ids": [10]})
        host.handle({"do": "drop", "id": 0, "policy": 3})
        assert await said.get() == {"id": 0}
        for _ in range(20):
            await asyncio.sleep(0)
        assert said.empty()
        vllm.gate.set()
        assert await said.get() == {"dropped": 3}

    play(deeds)


def test_samples_others_while_weights_are_hashed(play, vllm_host, tmp_path, monkeypatch):
    hashed = threading.Event()

    async def deeds(host, vllm, said):
        vllm.gate.set()
        monkeypatch.setattr(vllm_host, "hash_of_what_is_read", lambda _: str(hashed.wait(60)))
        shared = share_in_file({"w": torch.ones(2)}, tmp_path / "weights")
        host.handle({"do": "load", "id": 9, "policy": 3, "name": "full", "shared": shared, "names": ["w"]})
        host.handle({"do": "sample", **request_for(1, 10)})
        assert (await said.get())["id"] == 10
        hashed.set()
        assert await said.get() == {"id": 9, "sha256": "True"}

    play(deeds)
