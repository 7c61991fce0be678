"""An engine, and what plain transformers says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from backend.compute.weights import AdapterWeights, FullWeights
from backend.engines.asking import Answers, Asked
from backend.engines.transformers.transformers_engine import TransformersEngine
from tinkergym.schema.sampling import Completion, SampleRequest

VOCABULARY = 64


def prompt(length: int, kind: int = 0) -> list[int]:
    return [(5 + 11 * kind + 7 * index * (kind + 1)) % VOCABULARY for index in range(length)]


def ask(request_id: str, prompt_ids: Sequence[int], **options: Any) -> SampleRequest:
    settings: dict[str, Any] = {
        "policy": "",
        "policy_version": 0,
        "max_tokens": 6,
        "seed": sum(request_id.encode()),
    }
    return SampleRequest(request_id=request_id, prompt_ids=list(prompt_ids), **(settings | options))


def answers(engine: TransformersEngine, requests: Sequence[SampleRequest]) -> Answers:
    found = Asked(engine, requests).wait(60)
    assert len(found) == len(requests)
    return found


def complete(engine: TransformersEngine, requests: Sequence[SampleRequest]) -> dict[str, Completion]:
    found = answers(engine, requests)
    assert all(isinstance(answer, Completion) for answer in found.values()), found
    return {name: answer for name, answer in found.items() if isinstance(answer, Completion)}


def plain_model(directory: Path, weights: AdapterWeights | FullWeights | None = None) -> Any:
    """The same policy in plain transformers, the adapter added to the weights in float64."""
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    if isinstance(weights, FullWeights):
        model.load_state_dict(weights.tensors)
    elif weights is not None:
        modules = dict(model.named_modules())
        for name, down in weights.tensors.items():
            if not name.endswith("lora_A.weight"):
                continue
            path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            up = weights.tensors[name.replace("lora_A", "lora_B")]
            delta = weights.scaling * up.double() @ down.double()
            weight = modules[path].weight
            weight.data = (
                weight.double() + (delta.T if type(modules[path]).__name__ == "Conv1D" else delta)
            ).float()
    return model


@torch.no_grad()
def assert_same_logprobs(model: Any, request: SampleRequest, completion: Completion) -> None:
    ids = torch.tensor([request.prompt_ids + completion.token_ids])
    logprobs = torch.log_softmax(model(ids).logits[0].float() / (request.temperature or 1.0), dim=-1)
    start = len(request.prompt_ids) - 1
    expected = [float(logprobs[start + i, token]) for i, token in enumerate(completion.token_ids)]
    assert completion.sampling_logprobs == pytest.approx(expected, abs=1e-4)
