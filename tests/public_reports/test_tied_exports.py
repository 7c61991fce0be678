"""Exports of models with tied embeddings: merged models that are broken, an output head dropped silently.

https://github.com/huggingface/transformers/issues/45127, https://github.com/huggingface/peft/issues/2018,
https://github.com/thinking-machines-lab/tinker-cookbook/issues/593,
https://github.com/unslothai/unsloth/issues/4098
"""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from backend.catalog.models import read_model_facts
from backend.learner.learner import Learner
from backend.learner.merging import merge_adapter
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import FullParameters, LoRA

IDS = [1, 7, 12, 3, 40, 9, 2]
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def folder(request, tmp_path_factory):
    torch.manual_seed(0)
    kinds = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
    config, model = kinds[request.param]
    path = tmp_path_factory.mktemp(request.param)
    model(config(**SIZES)).save_pretrained(path)
    return path


def trained(folder, adapter, out):
    """Train two steps; return the learner's logprobs."""
    learner = Learner(folder)
    learner.create_policy("p", adapter, seed=1)
    batch = [
        TrainSequence(
            token_ids=IDS,
            loss_mask=[False] * 2 + [True] * 5,
            sampling_logprobs=[None] * 2 + [-4.0] * 5,
            advantage=1.0,
        )
    ]
    for _ in range(2):
        learner.forward_backward("p", batch, policy_loss(loss="reinforce"))
        learner.optim_step("p", learning_rate=1e-2)
    found = learner.logprobs("p", batch)[0].tolist()
    learner.save("p", out, step=2, policy_version=2)
    return found


@pytest.mark.parametrize("adapter", [FullParameters(), LoRA(rank=4)], ids=["full", "lora"])
def test_gives_plain_transformers_the_same_logprobs(folder, adapter, tmp_path):
    learned = trained(folder, adapter, tmp_path / "saved")
    exported = tmp_path / "saved"
    if isinstance(adapter, LoRA):
        exported = tmp_path / "merged"
        merge_adapter(tmp_path / "saved", exported, model=str(folder))
    model = AutoModelForCausalLM.from_pretrained(exported).eval()
    assert model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    with torch.no_grad():
        table = model(torch.tensor([IDS])).logits[0].log_softmax(-1)
    plain = [table[place - 1, token].item() for place, token in enumerate(IDS) if place >= 2]
    assert learned == pytest.approx(plain, abs=1e-4)


@pytest.mark.parametrize("layer", ["lm_head", "embed_tokens"])
def test_refuses_adapter_on_tied_matrix_by_its_name(folder, layer):
    assert layer not in read_model_facts(folder).matrices
    with pytest.raises(InvalidRequestError) as refused:
        Learner(folder).create_policy("p", LoRA(rank=4, target_modules=[layer]), seed=1)
    assert refused.value.field == "adapter.target_modules"
