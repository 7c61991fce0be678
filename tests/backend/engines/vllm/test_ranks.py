"""One engine whose model two ranks divide between them, with the real vLLM; each test of one process's engine
that ranks could change has a twin here."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from backend.engines.asking import Asked
from tinkergym.schema.sampling import SampleRequest

pytestmark = pytest.mark.service
pytest.importorskip("vllm", reason="vLLM is not installed: bash scripts/install_vllm.sh")


def asked(count=2, max_tokens=8):
    policies = [("", 0), ("adapter", 4), ("full", 2)]
    return [
        SampleRequest(
            request_id=f"{policy}{number}",
            prompt_ids=[20 + 7 * number + place for place in range(9)],
            policy=policy,
            policy_version=version,
            max_tokens=max_tokens,
            seed=number,
        )
        for policy, version in policies
        for number in range(count)
    ]


def test_samples_each_policy_with_two_ranks_as_with_one(vllm_ranks):
    vllm_ranks.publish("adapter", 4, vllm_ranks.weights(1))
    vllm_ranks.publish("full", 2, vllm_ranks.full_weights(2))
    requests = asked()
    found = Asked(vllm_ranks.engine, requests).wait(240)
    for request in requests:
        answer = found[request.request_id]
        expected = vllm_ranks.expected(request, answer)
        assert answer.sampling_logprobs == pytest.approx(expected, abs=vllm_ranks.tolerance)


def test_loses_no_answer_with_one_rank_killed(vllm_ranks):
    vllm_ranks.publish("adapter", 4, vllm_ranks.weights(1))
    vllm_ranks.publish("full", 2, vllm_ranks.full_weights(2))
    restarts = vllm_ranks.engine.restarts
    processes = psutil.Process(vllm_ranks.engine.host_pid).children(recursive=True)
    (rank,) = [one for one in processes if "Worker_TP1" in " ".join(one.cmdline())]
    asking = Asked(vllm_ranks.engine, asked(count=4, max_tokens=200))
    os.kill(rank.pid, signal.SIGKILL)
    assert len(asking.wait(240)) == 12
    assert vllm_ranks.engine.restarts == restarts + 1
    assert vllm_ranks.engine.loaded() == {"adapter": 4, "full": 2}
    assert psutil.wait_procs(processes, timeout=60)[1] == []
