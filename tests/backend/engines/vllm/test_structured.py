"""Structured output with the real vLLM; that other engines refuse it stands in `test_engine_contract.py`."""

from __future__ import annotations

import json
import re

import pytest
import torch
from transformers import AutoTokenizer

from backend.engines.asking import Asked
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.schema.structured import JsonSchema, Regex

pytestmark = pytest.mark.service
pytest.importorskip("vllm", reason="vLLM is not installed: bash scripts/install_vllm.sh")
END = 2
MOVE = {
    "type": "object",
    "properties": {"move": {"type": "integer", "minimum": 0, "maximum": 8}, "sure": {"type": "boolean"}},
    "required": ["move", "sure"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(PACKAGED_MODELS["nano"])


@pytest.fixture
def subject(vllm_subject):
    yield vllm_subject
    for policy in vllm_subject.engine.loaded():
        vllm_subject.engine.retire(policy)


def ask(request_id, **options):
    settings = {"policy": "", "policy_version": 0, "max_tokens": 60, "seed": sum(request_id.encode())}
    prompt = [20 + (7 * index) % 900 for index in range(12)]
    return SampleRequest(request_id=request_id, prompt_ids=prompt, stop_ids=[END], **(settings | options))


def answers(engine, requests):
    found = Asked(engine, requests).wait(240)
    assert len(found) == len(requests)
    return found


def text(tokenizer, answer):
    assert isinstance(answer, Completion), answer
    assert answer.finish_reason == "stop"
    assert answer.token_ids[-1] == END
    return tokenizer.decode(answer.token_ids[:-1])


def test_answers_by_pattern_or_schema_beside_free_answers(subject, tokenizer):
    subject.publish("job", 1, subject.weights(1))
    requests = [
        ask("regex", structured=Regex(pattern="move [0-8]( now)?")),
        ask("adapter", structured=Regex(pattern="[a-c]{3}"), policy="job", policy_version=1),
        ask("json", structured=JsonSchema(json_schema=MOVE), temperature=0.0),
        ask("free"),
    ]
    found = answers(subject.engine, requests)
    assert re.fullmatch("move [0-8]( now)?", text(tokenizer, found["regex"]))
    assert re.fullmatch("[a-c]{3}", text(tokenizer, found["adapter"]))
    written = text(tokenizer, found["json"])
    assert "\n" not in written and "  " not in written
    move = json.loads(written)
    assert move.keys() == {"move", "sure"} and 0 <= move["move"] <= 8
    free = answers(subject.engine, [requests[-1]])["free"]
    assert found["free"].token_ids == free.token_ids
    assert free.sampling_logprobs == pytest.approx(
        subject.expected(requests[-1], free), abs=subject.tolerance
    )


def test_gives_logprobs_among_the_allowed_tokens(subject, tokenizer):
    request = ask("one", structured=Regex(pattern="[ab]"), temperature=1.5)
    answer = answers(subject.engine, [request])["one"]
    allowed = [i for i in range(len(tokenizer)) if tokenizer.decode([i]) in {"a", "b"}]
    with torch.no_grad():
        logits = subject._base(torch.tensor([request.prompt_ids])).logits[0, -1]
    among = torch.log_softmax(logits[allowed].float() / 1.5, dim=-1)
    assert answer.sampling_logprobs == pytest.approx(
        [float(among[allowed.index(answer.token_ids[0])]), 0.0], abs=subject.tolerance
    )


def test_counts_top_k_among_the_allowed_tokens(subject, tokenizer):
    request = ask("one", structured=Regex(pattern="[a-e]"), top_k=2)
    answer = answers(subject.engine, [request])["one"]
    allowed = [i for i in range(len(tokenizer)) if tokenizer.decode([i]) in set("abcde")]
    with torch.no_grad():
        logits = subject._base(torch.tensor([request.prompt_ids])).logits[0, -1]
    likeliest = sorted(allowed, key=lambda token: -logits[token])[:2]
    among = torch.log_softmax(logits[likeliest].float(), dim=-1)
    assert answer.token_ids[0] in likeliest
    assert answer.sampling_logprobs == pytest.approx(
        [float(among[likeliest.index(answer.token_ids[0])]), 0.0], abs=subject.tolerance
    )


def test_gives_structured_answer_alone_in_lockstep_and_in_batch(subject):
    requests = [ask(f"{i}", structured=Regex(pattern="[a-z]{4,9}")) for i in range(6)]
    together = subject.engine.generate_together(requests)
    found = answers(subject.engine, requests)
    assert [found[r.request_id].token_ids for r in requests] == [a.token_ids for a in together]
    assert answers(subject.engine, requests[2:3])["2"].token_ids == together[2].token_ids
    assert len({tuple(answer.token_ids) for answer in together}) > 1


def test_rejects_unusable_grammar_and_answers_the_others(subject):
    bad = [
        ask("open", structured=Regex(pattern="(a")),
        ask("look", structured=Regex(pattern="(?=a)b")),
        ask("schema", structured=JsonSchema(json_schema={"type": "nothing"})),
        ask("endless", structured=Regex(pattern="a")).model_copy(update={"stop_ids": []}),
    ]
    good = ask("good", structured=Regex(pattern="a"))
    found = answers(subject.engine, [*bad, good])
    for request in bad:
        assert found[request.request_id].error.type == "InvalidRequestError", request.request_id
    assert found["endless"].error.field == "stop_ids"
    assert isinstance(found["good"], Completion)
    together = subject.engine.generate_together([*bad, good])
    assert [isinstance(answer, Completion) for answer in together] == [False] * 4 + [True]
