"""What runs inside vLLM's own process: how tokens are drawn, weights are exchanged, and that it ends with us.

vLLM imports this file by name; nothing else does. It reaches into vLLM's model runner, so it holds for the
version that `scripts/install_vllm.sh` installs; where a part is missing, the engine does not start.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from vllm.lora.layers.logits_processor import LogitsProcessorWithLoRA
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.model_loader.reload.layerwise import _place_kernel_tensors, get_layerwise_info
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from backend.engines.embedded.token_sampling import cut_logprobs, draw_tokens
from backend.engines.vllm.shared_weights import Opening, open_weights
from backend.processes.children import die_with_parent

SEED = "tinkergym_seed"
"""Where a request's seed stands in its `extra_args`."""


class InProcessExecutor(UniProcExecutor):  # type: ignore[misc]
    """One device, computed in the process of vLLM's scheduler: one process less to start, and to lose."""

    def _init_executor(self) -> None:
        # Nothing else tells this process that the one above was killed: it would wait for requests for ever.
        die_with_parent()
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        _leave_experts_alone()
        super()._init_executor()


class WorkerExtension:
    """Methods added to vLLM's worker, for `collective_rpc`; their names must not meet vLLM's own."""

    model_runner: Any

    def tinkergym_draw_by_position(self) -> None:
        """Draw as the embedded engine does: by a number that depends on seed and position alone.

        vLLM's own draw depends on how many tokens the request has drawn before, so that two turns of an
        episode, which share a seed, would use the same numbers. And a request that it draws for by seed ends
        the whole engine on a CPU as soon as its prompt is computed in two parts (0.32.0: the generator is
        turned back, which CPU generators cannot do). So our seed travels where vLLM does not look.
        """
        runner = self.model_runner

        def draw(
            logits: Tensor, generators: dict[int, torch.Generator], k: Tensor | None, p: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            logprobs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
            batch, count = runner.input_batch, logits.shape[0]
            asked = [runner.requests[name].sampling_params for name in batch.req_ids[:count]]
            if k is not None or p is not None:
                # Not by `k` and `p`, which are rounded to float32. At temperature 0 vLLM sets both to all.
                cut_logprobs(logprobs, {row: one for row, one in enumerate(asked) if _is_cut(one)})
            seeds = [one.extra_args[SEED] for one in asked]
            positions = batch.num_tokens_no_spec[:count].tolist()
            return draw_tokens(logprobs, seeds, positions), logprobs

        runner.sampler.topk_topp_sampler.forward = draw
        _score_prompts_without_head_adapters(runner)

    def tinkergym_load_weights(self, opening: Opening | None, names: list[str]) -> None:
        """Put a full policy's weights, or with None the base model's, in place of those that are there."""
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
    """Have a prompt's logits computed by the head alone, as no adapter is for a head.

    vLLM adds to them what the adapters of the sampled rows add to theirs: rows of one batch to those of
    another, which ends the engine as soon as two requests are in it (0.32.0).
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
    # What is mapped from a file is ours if we write to it; on a GPU it is everybody's.
    return tensor.clone() if tensor.is_cuda else tensor


def _is_cut(settings: Any) -> bool:
    return bool(settings.top_k > 0 or settings.top_p < 1)


def _leave_experts_alone() -> None:
    """Have experts computed as if there were no adapters, as none is for an expert (see `lora_targets`).

    vLLM goes by whether there are adapters at all: then it wants Triton for experts, which a CPU has not.
    """
    after = FusedMoEConfig.__post_init__

    def made(config: Any) -> None:
        config.is_lora_enabled = False
        after(config)

    FusedMoEConfig.__post_init__ = made


def _forget_half_loaded(model: torch.nn.Module) -> None:
    # vLLM would add what is loaded next to the half of a layer that it has (0.32.0).
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if info.can_load():
            _place_kernel_tensors(layer, info)
            info.reset()


def _repack(model: torch.nn.Module) -> None:
    # On a CPU vLLM multiplies by a packed copy of a weight. A reload packs anew what was loaded, but an
    # output head tied to the embedding is not loaded, and would keep yesterday's copy.
    for module in model.modules():
        method, weight = getattr(module, "quant_method", None), getattr(module, "weight", None)
        if "cpu_linear" in vars(module) and method is not None and weight is not None and weight.numel():
            method.process_weights_after_loading(module)
