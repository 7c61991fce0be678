"""Code that runs in vLLM's own process: drawing tokens, exchanging weights, and ending with its parent.

Only vLLM imports this file, by name. It uses internals of vLLM's model runner, so it only works with the
version that `scripts/install_vllm.sh` installs; if a part is missing, the engine does not start.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from vllm.lora.layers.logits_processor import LogitsProcessorWithLoRA
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.model_loader.reload.layerwise import _place_kernel_tensors, get_layerwise_info
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from backend.engines.token_sampling import cut_logprobs, draw_tokens
from backend.engines.vllm.files import hash_of_what_is_read
from backend.engines.vllm.shared_weights import Opening, open_weights
from backend.processes.children import die_with_parent

SEED = "tinkergym_seed"
"""The key of a request's seed in its `extra_args`."""


class InProcessExecutor(UniProcExecutor):  # type: ignore[misc]
    """One device, in the process of vLLM's scheduler, which avoids a further process."""

    def _init_executor(self) -> None:
        # Nothing else tells this process that its parent was killed: it would wait for requests forever.
        die_with_parent()
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        super()._init_executor()


class RanksExecutor(MultiprocExecutor):  # type: ignore[misc]
    """Several devices of one machine, each in a process, which ends when this one does."""

    def _init_executor(self) -> None:
        die_with_parent()
        super()._init_executor()


class WorkerExtension:
    """Methods added to vLLM's worker, for `collective_rpc`; their names must not collide with vLLM's."""

    model_runner: Any

    def tinkergym_draw_by_position(self) -> None:
        """Draw like the transformers engine: with a number that depends only on seed and position.

        vLLM's own draw depends on how many tokens the request has drawn before, so two turns of an episode,
        which share a seed, would use the same numbers. In addition, on a CPU a seeded request whose prompt is
        computed in two parts kills the engine (0.32.0: the generator is rewound, which CPU generators do not
        support). Our seed therefore travels in a field that vLLM ignores.
        """
        runner = self.model_runner

        def draw(
            logits: Tensor, generators: dict[int, torch.Generator], k: Tensor | None, p: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            logprobs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
            batch, count = runner.input_batch, logits.shape[0]
            asked = [runner.requests[name].sampling_params for name in batch.req_ids[:count]]
            if k is not None or p is not None:
                # Not by `k` and `p`, which are rounded to float32. At temperature 0 vLLM disables both.
                cut_logprobs(logprobs, {row: one for row, one in enumerate(asked) if _is_cut(one)})
            seeds = [one.extra_args[SEED] for one in asked]
            positions = batch.num_tokens_no_spec[:count].tolist()
            return draw_tokens(logprobs, seeds, positions), logprobs

        runner.sampler.topk_topp_sampler.forward = draw
        _score_prompts_without_head_adapters(runner)

    def tinkergym_sha256(self, policy: dict[str, Any]) -> str:
        """Return the SHA-256 of a policy's weights as this rank reads them."""
        return hash_of_what_is_read(policy)

    def tinkergym_load_weights(self, opening: Opening | None, names: list[str]) -> None:
        """Replace the model's weights by a full policy's, or with None by the base model's."""
        runner = self.model_runner
        try:
            if opening is None:
                runner.reload_weights()
            else:
                tensors = open_weights(opening)
                runner.reload_weights(weights_iterator=((name, _own(tensors[name])) for name in names))
        except BaseException:
            _forget_half_loaded(runner.model)
            raise
        _repack(runner.model)


def _score_prompts_without_head_adapters(runner: Any) -> None:
    """Compute a prompt's logits with the head alone, because no adapter applies to the head.

    vLLM adds the adapters of the sampled rows to them: rows of different batches are combined, which kills
    the engine as soon as it has two requests (0.32.0).
    """
    score = runner._get_prompt_logprobs_dict

    def scored(*args: Any, **settings: Any) -> Any:
        if not runner.num_prompt_logprobs:
            return score(*args, **settings)
        heads = [one for one in runner.model.modules() if isinstance(one, LogitsProcessorWithLoRA)]
        wrappers = [one.punica_wrapper for one in heads]
        for wrapper in wrappers:
            wrapper.add_lora_logits = lambda *_, **__: None
        try:
            return score(*args, **settings)
        finally:
            for wrapper in wrappers:
                vars(wrapper).pop("add_lora_logits", None)

    runner._get_prompt_logprobs_dict = scored


def _own(tensor: Tensor) -> Tensor:
    # A file mapping is copied on write; GPU memory is shared with everyone.
    return tensor.clone() if tensor.is_cuda else tensor


def _is_cut(settings: Any) -> bool:
    return bool(settings.top_k > 0 or settings.top_p < 1)


def _leave_experts_alone() -> None:
    """Compute experts as if there were no adapters, because none applies to experts (see `lora_targets`).

    vLLM only checks whether adapters exist: it then needs Triton for experts, which a CPU does not have.
    """
    after = FusedMoEConfig.__post_init__

    def made(config: Any) -> None:
        config.is_lora_enabled = False
        after(config)

    FusedMoEConfig.__post_init__ = made


def _forget_half_loaded(model: torch.nn.Module) -> None:
    # vLLM would add what is loaded to the half of a layer that it has (0.32.0).
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if info.can_load():
            _place_kernel_tensors(layer, info)
            info.reset()


def _repack(model: torch.nn.Module) -> None:
    # On a CPU, vLLM multiplies by a packed copy of a weight. A reload packs what it loaded, but an output
    # head tied to the embedding is not loaded, and would keep its old copy.
    for module in model.modules():
        method, weight = getattr(module, "quant_method", None), getattr(module, "weight", None)
        if "cpu_linear" in vars(module) and method is not None and weight is not None and weight.numel():
            method.process_weights_after_loading(module)


# In every process of vLLM, each of which imports this file before it loads the model.
_leave_experts_alone()
